//! What a person types about channels.
//!
//! Only clap lives here; the work is in `command/channel`.

use clap::Subcommand;

use super::WorkArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum ChannelCommand {
    /// Carry sessions of this project through a channel until Ctrl-C
    #[command(after_help = "\
Starts the plugin in its sandbox. What somebody says who is in `channels.senders` of your own
configuration is a task, or steers the one that their conversation has; progress, questions and the
result go back. Who is not in the list is refused, and every decision is recorded. Questions are
answered at a terminal, by `fluffy session resume`, unless `channels.approvers` names who asks.

  fluffy channel run chat --model openai/gpt-5")]
    Run {
        /// The plugin
        name: String,
        #[command(flatten)]
        work: WorkArgs,
    },
}
