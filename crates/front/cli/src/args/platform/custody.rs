//! What a person types about master keys that several people keep.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What `keys init` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Works without a server. A custodian makes an identity by `age-keygen -o me.key` and gives you the
line that it prints. Every group of shares that suffices is proved to be the key before a file is
written. Nobody sees the key, and nothing else of it is kept: what `--out` has is for the
custodians, and the record is to be signed by those who were there.

  fluffy keys init --shares 3 --threshold 2 --custodian age1… --custodian age1… \\
      --custodian age1… --out shares")]
pub(crate) struct InitKeysArgs {
    /// How many shares there are, one for each custodian
    #[arg(long, value_name = "N")]
    pub(crate) shares: u8,
    /// How many of them are the key
    #[arg(long, value_name = "N")]
    pub(crate) threshold: u8,
    /// Encrypt a share to this `age` recipient (once for each share)
    #[arg(long = "custodian", value_name = "RECIPIENT", required = true)]
    pub(crate) custodians: Vec<String>,
    /// Write the shares and the record to sign into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Split the only key in use of this folder, instead of a new one
    #[arg(long, value_name = "DIR", conflicts_with_all = ["after", "renew"])]
    pub(crate) keys: Option<PathBuf>,
    /// Make the next key for who has this share (repeat until it is enough)
    #[arg(long, value_name = "SHARE", conflicts_with = "renew")]
    pub(crate) after: Vec<PathBuf>,
    /// Split the key of this share anew (repeat until it is enough): a share
    /// was lost, or custodians change
    #[arg(long, value_name = "SHARE")]
    pub(crate) renew: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) with: IdentityArgs,
}

/// How shares are decrypted.
#[derive(Debug, Args)]
pub(crate) struct IdentityArgs {
    /// Decrypt shares with this `age` identity (repeat for more)
    #[arg(long = "identity", value_name = "FILE")]
    pub(crate) identities: Vec<PathBuf>,
}

/// What `keys recover` takes.
#[derive(Debug, Args)]
pub(crate) struct RecoverKeysArgs {
    /// Files with shares of one set, as many as it takes
    #[arg(value_name = "SHARE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Put the key into this folder of keys; what is there stays
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: PathBuf,
    #[command(flatten)]
    pub(crate) with: IdentityArgs,
}

/// What `keys shares verify` takes.
#[derive(Debug, Args)]
pub(crate) struct VerifySharesArgs {
    /// Files with shares of one set, as many as it takes
    #[arg(value_name = "SHARE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) with: IdentityArgs,
}

/// What is done with a server that runs.
#[derive(Debug, Subcommand)]
pub(crate) enum ServerCommand {
    /// Bring a share of the master key to the server that runs here
    #[command(after_help = "\
For a server that was started with --unseal, as the user that it runs as. The share is pasted
unseen, piped in, or in a file. The server goes on when there are enough, and keeps the key in
memory alone. Shares that wait for others are forgotten after 15 minutes.

  age -d -i me.key mk_….age | fluffy server unseal")]
    Unseal(UnsealArgs),
}

/// What `server unseal` takes.
#[derive(Debug, Args)]
pub(crate) struct UnsealArgs {
    /// A file with a share
    #[arg(value_name = "SHARE")]
    pub(crate) file: Option<PathBuf>,
    /// The folder of the server, if it was named when it was started
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) with: IdentityArgs,
}
