"""The sources of events and configuration: the API server, files, directories, interfaces."""
