//! `fluffy-node-sim`: simulated nodes in a process of their own.

use anyhow::Result;

#[tokio::main]
async fn main() -> Result<()> {
    fluffy_node_sim::run(std::env::args_os().collect()).await
}
