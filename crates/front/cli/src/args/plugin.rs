//! What a person types about plugins.
//!
//! Only clap lives here; the work is in `command/plugin`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Install a plugin from its folder, after showing what it could do
    #[command(after_help = "\
Shows what the plugin declares, in words, and asks. Then starts it once in its sandbox and shows
the tools it has, in its own words, and asks again. What you saw is pinned: a file, a capability or
a tool's description that differs later is not used until you install it again, and what it could
do more is shown first.

  fluffy plugin install ./issue-tracker
  fluffy plugin install ./issue-tracker --grant 'kv.*' --grant net.connect.tracker.example.com:443")]
    Install {
        /// The folder with its `plugin.yaml`
        folder: PathBuf,
        /// Grant only what matches this, of what it declares (repeat for more)
        #[arg(long, value_name = "PATTERN")]
        grant: Vec<String>,
        /// Answer yes to both questions
        #[arg(long)]
        yes: bool,
    },
    /// List installed plugins
    List {
        /// Those that cannot run, with the reason
        #[arg(long)]
        rejected: bool,
    },
    /// Show what a plugin is, could do, and was granted
    Inspect {
        /// The name of an installed one, or a folder with a `plugin.yaml`
        plugin: String,
    },
    /// Show what a plugin said
    Logs {
        /// Its name
        name: String,
        /// How many lines
        #[arg(long, short = 'n', default_value_t = 50, value_name = "LINES")]
        lines: usize,
    },
    /// Let a plugin run again that was switched off
    Enable {
        /// Its name
        name: String,
        /// Answer yes to what policy wants a person to look at
        #[arg(long)]
        yes: bool,
    },
    /// Switch a plugin off; running sessions lose it when the next one begins
    Disable {
        /// Its name
        name: String,
        /// Why, for whoever looks later
        #[arg(long, default_value = "switched off by hand")]
        reason: String,
    },
    /// Have a plugin started anew when the next session begins
    Reload {
        /// Its name
        name: String,
        /// Answer yes to what policy wants a person to look at
        #[arg(long)]
        yes: bool,
    },
    /// Remove a plugin; what it kept stays unless you say otherwise
    Remove {
        /// Its name
        name: String,
        /// Also remove its data, its values and its log
        #[arg(long)]
        purge: bool,
        /// Answer yes to what policy wants a person to look at
        #[arg(long)]
        yes: bool,
    },
    /// Print the JSON Schema of `plugin.yaml`, for editors
    Schema,
}
