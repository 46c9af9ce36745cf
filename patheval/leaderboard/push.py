"""Boards as datasets on the Hugging Face hub."""

from pathlib import Path

from patheval.errors import PrerequisiteError, ResultsError

from .write import ROWS


def files_to_push(board: Path) -> list[Path]:
    """Returns the files of a board, in order.

    Args:
        board: Folder that `patheval leaderboard build` wrote.

    Raises:
        ResultsError: The folder holds no board.
    """
    if not (board / ROWS).is_file():
        raise ResultsError(f"{board} holds no {ROWS}; name a folder that a board was built in")
    return sorted(path for path in board.rglob("*") if path.is_file())


def push_board(board: Path, repository: str, *, private: bool) -> str:
    """Uploads a board to a dataset, which is made if there is none.

    Args:
        board: Folder that `patheval leaderboard build` wrote.
        repository: OWNER/NAME.
        private: Whether a new dataset is private.

    Returns:
        The address of the commit.

    Raises:
        PrerequisiteError: The hub cannot be reached, or refuses.
        ResultsError: The folder holds no board.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    files_to_push(board)
    api = HfApi()
    try:
        api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=board,
            commit_message=f"Leaderboard {board.resolve().name}",
        )
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise PrerequisiteError(
            f"{repository} could not be written ({reason}); run `hf auth login` with a token that "
            "may write there"
        ) from error
    return str(commit.commit_url)
