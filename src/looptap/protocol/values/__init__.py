"""Values on the wire: snapshots as msgpack with raw buffers, packed and unpacked."""
