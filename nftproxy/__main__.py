"""`python -m nftproxy`, for where the console script is not on PATH."""

from nftproxy.commands.cli import main

if __name__ == "__main__":
    main()
