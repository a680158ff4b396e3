"""The statements of the source documents as measurements that run: one file is one claim."""
