"""Makes link_pb2.py and link_pb2.pyi from link.proto: `python -m federation.link.generate`.

The result is committed, so nobody needs the tools to run or install. Made with grpcio-tools 1.81 (protobuf 6), it
runs with any protobuf of the declared range; run this after a change of link.proto only.
"""

import sys
from pathlib import Path


def main() -> int:
    """Write the generated modules beside the .proto file; return the compiler's exit status."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    root = Path(__file__).resolve().parents[2]
    status: int = protoc.main(
        [
            "protoc",
            f"--proto_path={root}",
            f"--python_out={root}",
            f"--pyi_out={root}",
            "federation/link/link.proto",
        ]
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
