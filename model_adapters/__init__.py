"""Model classes that lm-evaluation-harness loads by name; installed as patheval.model_adapters."""
