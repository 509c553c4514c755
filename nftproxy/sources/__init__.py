"""What comes in: the API server, files, directories, interfaces."""
