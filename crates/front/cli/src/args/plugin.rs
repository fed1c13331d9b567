//! What a person types about plugins.
//!
//! Only clap lives here; the work is in `command/plugin`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Write a new plugin: manifest, code, tests, and how to go on
    #[command(after_help = "\
Rust becomes a WASM component, with the SDK beside it. The others are servers of the Model Context
Protocol with nothing but their standard library.

  fluffy plugin new --lang python words
  fluffy plugin new --lang rust word-count --dir plugins/word-count")]
    New {
        /// What it is written in
        #[arg(long, value_enum, value_name = "LANGUAGE")]
        lang: PluginLanguage,
        /// Its name: lower case, with `-` between words
        name: String,
        /// Where it is written, instead of a folder of its name here
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
    },
    /// Check that a plugin keeps the contract, whatever it is written in
    #[command(after_help = "\
Starts the plugin in its sandbox, with what it declares, and asks of it what a session could ask:
its tools, calls of those that only read, wrong calls, two at once, an end, a second start. Nothing
is installed. A line for each check; ends with 1 when one does not hold.

  fluffy plugin test ./words/plugin")]
    Test {
        /// The folder with its `plugin.yaml`
        #[arg(default_value = ".")]
        folder: PathBuf,
        /// Grant only what matches this, of what it declares (repeat for more)
        #[arg(long, value_name = "PATTERN")]
        grant: Vec<String>,
    },
    /// Run a plugin from its folder, and reload it when it changes
    #[command(after_help = "\
Shows every decision of policy about the plugin and every line it logs, as they come. Type the name
of a tool and a JSON object to call it. When a file changes, the new plugin starts beside the old
one and takes its place; one that does not start changes nothing. Nothing is installed.

  fluffy plugin dev ./words/plugin
  fluffy plugin dev ./words/plugin --call count '{\"text\": \"one two\"}'")]
    Dev {
        /// The folder with its `plugin.yaml`
        #[arg(default_value = ".")]
        folder: PathBuf,
        /// Call one tool, show its answer, and end
        #[arg(long, num_args = 2, value_names = ["TOOL", "JSON"])]
        call: Vec<String>,
        /// Grant only what matches this, of what it declares (repeat for more)
        #[arg(long, value_name = "PATTERN")]
        grant: Vec<String>,
    },
    /// Install a plugin from its folder or an archive, after showing what it could do
    #[command(after_help = "\
Shows what the plugin declares, in words, and asks. Then starts it once in its sandbox and shows
the tools it has, in its own words, and asks again. What you saw is pinned: a file, a capability or
a tool's description that differs later is not used until you install it again, and what it could
do more is shown first.

  fluffy plugin install ./issue-tracker
  fluffy plugin install issue-tracker-1.2.0.tar.gz
  fluffy plugin install ./issue-tracker --grant 'kv.*' --grant net.connect.tracker.example.com:443")]
    Install {
        /// The folder with its `plugin.yaml`, or a `.tar.gz` or `.zip` of it
        #[arg(value_name = "PATH")]
        path: PathBuf,
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
        #[arg(long, conflicts_with = "built_in")]
        rejected: bool,
        /// Those that come with fluffy, with their tools
        #[arg(long)]
        built_in: bool,
    },
    /// Show what a plugin is, could do, and was granted
    Inspect {
        /// The name of an installed one, or the path of a folder or archive
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
    /// Show the settings of a plugin, or change them
    #[command(after_help = "\
A secret is typed unseen, or read from standard input; it is stored encrypted and never shown again.
What changes holds from the next session on.

  fluffy plugin config issue-tracker
  fluffy plugin config issue-tracker url=https://tracker.example.com retries=3
  fluffy plugin config issue-tracker --secret token
  pass show tracker | fluffy plugin config issue-tracker --secret token")]
    Config {
        /// Its name
        name: String,
        /// Settings to change; items of a list stand between commas
        #[arg(value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// Read this secret from the terminal or standard input
        #[arg(long, value_name = "KEY")]
        secret: Option<String>,
        /// Take a setting back to its default (repeat for more)
        #[arg(long, value_name = "KEY")]
        unset: Vec<String>,
        /// Answer yes to what policy wants a person to look at
        #[arg(long)]
        yes: bool,
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

/// What `plugin new` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PluginLanguage {
    /// A program of its own
    Go,
    /// Needs Python 3.9 or newer
    Python,
    /// A WASM component
    Rust,
    /// TypeScript, compiled for Node
    Ts,
}
