"""Other releases and architectures of Debian, unpacked, and the packages that our tools need from this machine's."""
