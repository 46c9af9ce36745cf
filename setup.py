"""Build step that pyproject.toml cannot express: start-up files beside the installed packages.

lm-eval 0.4.13 reads no entry points, so ``lm_eval --model path`` needs patheval to register itself
when Python starts: through a ``.pth`` file, or the ``.start`` file of PEP 829 that replaces it.
"""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

STARTUP_FILES = {
    "patheval_autoload.pth": (
        r'import sys; exec("try:\n from patheval._autoload import autoload\n autoload()\n'
        r'except Exception: pass")'
    ),
    "patheval_autoload.start": "patheval._autoload:autoload",
}


class BuildWithStartupFiles(build_py):
    """Copy the packages, then write the start-up files next to them."""

    def run(self) -> None:
        """Build from scratch, so that files deleted from the tree do not linger in the wheel."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        self._target.mkdir(parents=True, exist_ok=True)
        for name, text in STARTUP_FILES.items():
            (self._target / name).write_text(f"{text}\n", encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Name the start-up files too, which an editable build keeps elsewhere."""
        outputs: list[str] = super().get_outputs(include_bytecode)
        if self.editable_mode:
            return outputs
        return [*outputs, *(str(self._target / name) for name in STARTUP_FILES)]

    @property
    def _target(self) -> Path:
        if self.editable_mode:
            return Path(self.get_finalized_command("install").install_lib)
        return Path(self.build_lib)


setup(
    packages=[*find_packages(include=["patheval*"]), "patheval.tasks", "patheval.model_adapters"],
    package_dir={
        "patheval": "patheval",
        "patheval.tasks": "tasks",
        "patheval.model_adapters": "model_adapters",
    },
    cmdclass={"build_py": BuildWithStartupFiles},
)
