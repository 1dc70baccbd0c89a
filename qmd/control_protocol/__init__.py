"""The frames of the control socket: requests and replies as MessagePack structures."""
