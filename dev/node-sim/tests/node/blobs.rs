//! Blobs of images that were deployed from files: for nodes, by digest.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fluffy_api::node::{code_of, v1};
use fluffy_base::{Clock as _, Digest, SystemClock};
use fluffy_image::{ImageSource, Limits, Shelf};
use fluffy_server::node::Role;
use serde_json::json;
use tonic::Status;

use crate::kit::{Cluster, Member, nodes};

/// An image of one layer as a folder of the OCI layout; the layer's digest.
fn write_image(folder: &Path, layer: &[u8]) -> Digest {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |kind: &str, bytes: &[u8]| {
        let digest = Digest::of(bytes);
        fs::write(blobs.join(digest.to_string()), bytes).unwrap();
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"), "size": bytes.len(),
        })
    };
    let digest = Digest::of(layer);
    let config = json!({
        "os": "linux", "architecture": "amd64",
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let config = put("config.v1+json", config.to_string().as_bytes());
    let layer = put("layer.v1.tar", layer);
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
    let manifest = put("manifest.v1+json", manifest.to_string().as_bytes());
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(folder.join("index.json"), index.to_string()).unwrap();
    let version = json!({"imageLayoutVersion": "1.0.0"});
    fs::write(folder.join("oci-layout"), version.to_string()).unwrap();
    digest
}

async fn get(
    cluster: &Cluster,
    member: &Member,
    request: v1::BlobRequest,
) -> Result<Vec<u8>, Status> {
    let mut client = cluster.client(member).await;
    let mut pieces = client.get_blob(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(piece) = pieces.message().await? {
        assert!(piece.bytes.len() <= 64 << 10);
        all.extend(piece.bytes);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_a_blob_by_its_digest_and_nobody_else_does() {
    let cluster = Cluster::start().await;
    let layer: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    let digest = write_image(&cluster.folder.path().join("image"), &layer);
    let node = cluster.member();
    let asked = |digest: Digest, from: u64| v1::BlobRequest {
        node_id: node.node.to_string(),
        digest: format!("sha256:{digest}"),
        from,
    };
    let code = |got: Result<Vec<u8>, Status>| {
        let refused = got.unwrap_err();
        code_of(&refused).map(str::to_owned)
    };
    // A server that takes no images of files has none.
    let none = get(&cluster, &node, asked(digest, 0)).await;
    assert_eq!(code(none).as_deref(), Some("not_found"));
    let shelf = Shelf::open(&cluster.folder.path().join("shelf"), 64 << 20).unwrap();
    let source = ImageSource::Layout(cluster.folder.path().join("image"));
    let resolved = shelf.import(&source, Limits::default()).unwrap();
    cluster.server.serve_blobs(Arc::new(shelf));
    assert_eq!(get(&cluster, &node, asked(digest, 0)).await.unwrap(), layer);
    let rest = get(&cluster, &node, asked(digest, 150_001)).await.unwrap();
    assert_eq!(rest, layer[150_001..]);
    let past = get(&cluster, &node, asked(digest, 1 << 40)).await.unwrap();
    assert!(past.is_empty());
    let manifest = resolved.platforms[0].digest;
    let bytes = get(&cluster, &node, asked(manifest, 0)).await.unwrap();
    assert_eq!(Digest::of(&bytes), manifest);
    let other = get(&cluster, &node, asked(Digest::of(b"other"), 0)).await;
    assert_eq!(code(other).as_deref(), Some("not_found"));
    for odd in ["", "sha256:", "../../etc/passwd", "sha256:../../etc/passwd"] {
        let mut request = asked(digest, 0);
        request.digest = odd.to_owned();
        assert!(get(&cluster, &node, request).await.is_err(), "{odd}");
    }
    // In another's name, with another role, and without a name.
    let stranger = cluster.member();
    let stolen = get(&cluster, &stranger, asked(digest, 0)).await;
    assert_eq!(code(stolen).as_deref(), Some("node_mismatch"));
    let edge = cluster.member_since(Role::Edge, SystemClock.now());
    let mut request = asked(digest, 0);
    request.node_id = edge.node.to_string();
    let wrong = get(&cluster, &edge, request).await;
    assert_eq!(code(wrong).as_deref(), Some("wrong_role"));
    let mut nobody = nodes(cluster.dial(None).await.unwrap());
    let refused = nobody.get_blob(asked(digest, 0)).await.unwrap_err();
    assert_eq!(code_of(&refused), Some("unauthenticated"));
}
