from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Document(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class Signed(_message.Message):
    __slots__ = ("kind", "body", "signature", "message_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    body: bytes
    signature: bytes
    message_id: str
    def __init__(self, kind: _Optional[str] = ..., body: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., message_id: _Optional[str] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("message_id",)
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    def __init__(self, message_id: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("message_id", "code", "text")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    code: str
    text: str
    def __init__(self, message_id: _Optional[str] = ..., code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("hello", "newest_id")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    NEWEST_ID_FIELD_NUMBER: _ClassVar[int]
    hello: Signed
    newest_id: str
    def __init__(self, hello: _Optional[_Union[Signed, _Mapping]] = ..., newest_id: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("opening", "message", "acknowledged", "refused", "heartbeat")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    opening: Opening
    message: Signed
    acknowledged: Acknowledged
    refused: Refused
    heartbeat: Heartbeat
    def __init__(self, opening: _Optional[_Union[Opening, _Mapping]] = ..., message: _Optional[_Union[Signed, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledged, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("root", "size_bytes")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    root: str
    size_bytes: int
    def __init__(self, root: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("reference", "first_chunk")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    reference: Reference
    first_chunk: int
    def __init__(self, reference: _Optional[_Union[Reference, _Mapping]] = ..., first_chunk: _Optional[int] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("reference", "first_chunk", "hashes")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    reference: Reference
    first_chunk: int
    hashes: bytes
    def __init__(self, reference: _Optional[_Union[Reference, _Mapping]] = ..., first_chunk: _Optional[int] = ..., hashes: _Optional[bytes] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("head", "chunk")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    head: Head
    chunk: bytes
    def __init__(self, head: _Optional[_Union[Head, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class StagedReply(_message.Message):
    __slots__ = ("chunks", "complete")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    complete: bool
    def __init__(self, chunks: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...
