//! Compiles the `.proto` files with protox (no protoc needed) into message types; services are written by hand.

use std::path::PathBuf;

use prost::Message as _;

const FILES: [&str; 6] = [
    "apache/rocketmq/v2/definition.proto",
    "apache/rocketmq/v2/service.proto",
    "apache/rocketmq/v2/admin.proto",
    "flotilla/peer.proto",
    "flotilla/namesrv.proto",
    "flotilla/admin.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // The adapters in src/server and src/client call tonic's codec layer directly.
        .build_client(false)
        .build_server(false)
        // Bodies are slices of what was read from the socket, never copies.
        .bytes(".")
        // A fixed order, so that a simulated run can be repeated.
        .btree_map(".")
        .include_file("generated.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
