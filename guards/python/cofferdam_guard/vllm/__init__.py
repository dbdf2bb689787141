"""The guard for vLLM. Imported by vLLM through ``kv_connector_module_path``."""
