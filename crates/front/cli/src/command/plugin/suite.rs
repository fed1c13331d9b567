//! `fluffy plugin test`: does a plugin keep the contract, whatever it speaks?
//!
//! Starts it as a session would and asks everything of it that a session can
//! ask, and some things that none should. One that dies is started again, so
//! that each fault is found by its own check. Next: `sample` for the arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_base::id::SandboxId;
use fluffy_contract::tool::{CallToolError, ForeignTool, ToolOutcome, ToolOutput};
use fluffy_contract::{BoxFuture, ToolSource};
use fluffy_kernel::agent::explain;
use fluffy_plugin_core::manifest::{Effect, Kind};
use fluffy_plugin_host::plugins::{Alone, LaunchError};
use fluffy_plugin_host::shelf::{ExamineError, Placed, pin_of};
use fluffy_plugin_host::{CallPluginError, Connection, StartPluginError};
use fluffy_policy::Permit;
use fluffy_policy::capability::matches;
use fluffy_policy::decision::Verdict;
use fluffy_tools::ProjectPaths;
use fluffy_tools::registry::Registry;
use serde_json::Value;

use super::bench::{Bench, capability};
use super::sample;

/// The longest that one may take to end by itself, whatever it wishes for.
const MOST_GRACE: Duration = Duration::from_secs(10);

/// The longest summary that a model gets whole.
const MAX_SUMMARY: usize = 1_000;

/// A name that no plugin gives a tool.
const NO_TOOL: &str = "fluffy-has-no-such-tool";

/// What one check found.
#[derive(Debug)]
pub(super) struct Finding {
    /// Its stable name.
    pub(super) check: &'static str,
    /// What it is about, for people.
    pub(super) title: &'static str,
    /// What was found.
    pub(super) found: Found,
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// It holds; what was seen.
    Held(String),
    /// It does not.
    Broken { why: String, fix: String },
    /// It was not looked at.
    Skipped(String),
}

use Found::{Broken, Held, Skipped};

/// Every check, in order, with what it is about.
const CHECKS: [(&str, &str); 14] = [
    ("manifest", "its manifest is valid"),
    ("starts", "it starts in its sandbox"),
    ("speaks", "it speaks its protocol"),
    ("declared", "it has the tools that it declares"),
    ("described", "its tools can be offered to a model"),
    ("health", "it says that it is well"),
    ("calls", "it takes what its schemas say"),
    ("wrong-arguments", "it refuses what they do not say"),
    ("unknown-tool", "it refuses a tool that it has not got"),
    ("cancelled", "it goes on after a call nobody waits for"),
    ("at-once", "it answers two calls at once"),
    ("ends", "it ends when it is asked to"),
    ("again", "it is the same when it starts again"),
    ("undeclared", "it asks for nothing undeclared"),
];

/// Looks at the plugin in a folder from all sides.
pub(super) async fn check(bench: &Bench, folder: &Path) -> Vec<Finding> {
    let mut found = BTreeMap::new();
    match bench.place(folder) {
        Ok(placed) => {
            let suite = Suite {
                bench,
                placed: &placed,
                alone: None,
                found: &mut found,
            };
            suite.run().await;
        }
        Err(error) => {
            found.insert("manifest", refused(&error));
        }
    }
    let finding = |(check, title)| Finding {
        check,
        title,
        found: found
            .remove(check)
            .unwrap_or_else(|| Skipped("what comes before it does not hold".to_owned())),
    };
    CHECKS.map(finding).into()
}

struct Suite<'a> {
    bench: &'a Bench,
    placed: &'a Placed,
    alone: Option<Alone>,
    found: &'a mut BTreeMap<&'static str, Found>,
}

impl Suite<'_> {
    async fn run(mut self) {
        let mut since = self.bench.now();
        let fits = self.bench.plugins.fits(&self.placed.manifest);
        let manifest = match fits {
            Ok(()) => Held(format!("{} {}", self.name(), self.placed.manifest.version)),
            Err(misfit) => broken(
                misfit.to_string(),
                "say in `engine` and `api` what it works with",
            ),
        };
        let goes_on = matches!(manifest, Held(_));
        self.found.insert("manifest", manifest);
        if !goes_on || !self.start().await {
            return self.asked(&mut since);
        }
        let told = self.tools();
        self.insert("declared", self.declared(&told));
        let (described, offered) = self.described(&told);
        self.insert("described", described);
        let health = self.health().await;
        self.insert("health", health);
        let (calls, works) = self.calls(&offered).await;
        self.insert("calls", calls);
        let wrong = self.wrong_arguments(&offered).await;
        self.insert("wrong-arguments", wrong);
        let unknown = self.unknown_tool().await;
        self.insert("unknown-tool", unknown);
        for check in ["cancelled", "at-once"] {
            let found = match &works {
                None => Skipped("no tool with `effect: reads` could be called".to_owned()),
                Some(call) if check == "cancelled" => self.cancelled(call).await,
                Some(call) => self.at_once(call).await,
            };
            self.insert(check, found);
        }
        let ends = self.ends().await;
        self.insert("ends", ends);
        let again = self.again(&told).await;
        self.insert("again", again);
        self.asked(&mut since);
    }

    fn name(&self) -> &str {
        &self.placed.manifest.name
    }

    fn insert(&mut self, check: &'static str, found: Found) {
        self.found.insert(check, found);
    }

    /// The first start, in two checks.
    async fn start(&mut self) -> bool {
        if self.placed.manifest.execution.is_none() {
            self.insert("starts", Skipped("it is only text".to_owned()));
            return false;
        }
        let (starts, speaks) = match self.bench.plugins.start_alone(self.placed).await {
            Ok(alone) => {
                self.alone = Some(alone);
                let spoken = Held("its tools are known".to_owned());
                (Held("it is ready".to_owned()), Some(spoken))
            }
            Err(LaunchError::Start(StartPluginError::Protocol { protocol, what })) => {
                let fix = format!("standard output is for `{protocol}` alone; `dev` shows its log");
                (Held("it runs".to_owned()), Some(broken(what, &fix)))
            }
            Err(error) => {
                let fix = "`fluffy plugin dev` shows what it says while it starts";
                (broken(explain(&error), fix), None)
            }
        };
        self.insert("starts", starts);
        if let Some(speaks) = speaks {
            self.insert("speaks", speaks);
        }
        self.alone.is_some()
    }

    /// The one that runs; another where it has ended.
    async fn running(&mut self) -> Result<&dyn Connection, String> {
        let is_there = match &self.alone {
            Some(alone) => lives(alone.connection()).await,
            None => false,
        };
        if !is_there {
            self.alone = None;
            let started = self.bench.plugins.start_alone(self.placed).await;
            self.alone = Some(started.map_err(|error| explain(&error))?);
        }
        let alone = self.alone.as_ref().map(Alone::connection);
        alone.ok_or_else(|| "it does not run".to_owned())
    }

    fn tools(&self) -> Vec<ForeignTool> {
        let alone = self.alone.as_ref();
        alone.map_or_else(Vec::new, |alone| alone.connection().tools())
    }

    fn declared(&self, told: &[ForeignTool]) -> Found {
        let told: BTreeSet<&str> = told.iter().map(|tool| tool.name.as_str()).collect();
        let declared = self.placed.manifest.tools.iter();
        let missing: Vec<&str> = declared
            .map(|tool| tool.name.as_str())
            .filter(|name| !told.contains(name))
            .collect();
        match missing.as_slice() {
            [] => Held(match told.len() {
                1 => "1 tool".to_owned(),
                count => format!("{count} tools"),
            }),
            names => broken(
                format!("it declares `{}` and does not have it", names.join("`, `")),
                "take it out of `tools` in plugin.yaml, or have the plugin tell it",
            ),
        }
    }

    /// Whether a session would take them all, and those that it would.
    fn described(&self, told: &[ForeignTool]) -> (Found, Vec<ForeignTool>) {
        let mut registry = Registry::standard(ProjectPaths::new(Path::new("/")));
        let source: Arc<dyn ToolSource> = Arc::new(Told {
            name: self.name().to_owned(),
            sandbox: SandboxId::generate(),
            tools: told.to_vec(),
        });
        let left_out = registry.add(&source);
        let is_left_out = |tool: &ForeignTool| left_out.iter().any(|one| one.name == tool.name);
        let offered = told.iter().filter(|tool| !is_left_out(tool)).cloned();
        let bad = told.iter().find_map(|tool| {
            let length = tool.summary.chars().count();
            let why = match length {
                _ if tool.summary.trim().is_empty() => "says nothing about itself",
                _ if length > MAX_SUMMARY => "says more about itself than a model is shown",
                _ => return None,
            };
            Some(format!("`{}` {why}", tool.name))
        });
        let why = match left_out.first() {
            Some(error) => Some(explain(error)),
            None if told.is_empty() && self.placed.manifest.kind == Kind::Tool => {
                Some("it has no tool at all".to_owned())
            }
            None => bad,
        };
        let fix = "tell a name, a line of description, and a JSON Schema of type object";
        let found = match why {
            Some(why) => broken(why, fix),
            None => Held("a model is offered all of them".to_owned()),
        };
        (found, offered.collect())
    }

    async fn health(&mut self) -> Found {
        let health = match self.running().await {
            Ok(connection) => connection.health().await.map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        match health {
            Ok(()) => Held("it answers".to_owned()),
            Err(why) => broken(why, "answer `health`; `ping` or `server/discover` in mcp"),
        }
    }

    /// Those that may be called without asking anybody.
    fn harmless<'t>(&self, told: &'t [ForeignTool]) -> Vec<&'t ForeignTool> {
        let reads = |tool: &&ForeignTool| {
            let mut declared = self.placed.manifest.tools.iter();
            declared.any(|one| one.name == tool.name && one.effect == Effect::Reads)
        };
        told.iter().filter(reads).collect()
    }

    /// Calls each with what fits its schema; one that works is given back.
    async fn calls(&mut self, told: &[ForeignTool]) -> (Found, Option<Call>) {
        let mut works = None;
        let mut faults = Vec::new();
        let tools = self.harmless(told);
        for tool in &tools {
            let call = Call::fitting(tool);
            match self.call(&call).await {
                Ok(_) => works = works.or(Some(call)),
                Err((why, fix)) => faults.push((format!("`{}` {why}", call.shown()), fix)),
            }
        }
        let found = match faults.first() {
            Some((why, fix)) => broken(why.clone(), fix),
            None if tools.is_empty() => {
                Skipped("no tool with `effect: reads` could be called".to_owned())
            }
            None => Held(format!("{} called, each answered", tools.len())),
        };
        (found, works)
    }

    async fn wrong_arguments(&mut self, told: &[ForeignTool]) -> Found {
        let mut tried = 0;
        for tool in self.harmless(told) {
            for arguments in sample::wrong(&tool.parameters) {
                tried += 1;
                let call = Call {
                    tool: tool.name.clone(),
                    arguments,
                };
                if let Err(why) = self.refuses(&call).await {
                    let why = format!("`{}` {why}", call.shown());
                    return broken(why, "check the arguments, and refuse those that do not fit");
                }
            }
        }
        match tried {
            0 => Skipped("no schema that something could be wrong by".to_owned()),
            tried => Held(format!("{tried} tried, each refused")),
        }
    }

    async fn unknown_tool(&mut self) -> Found {
        let call = Call {
            tool: NO_TOOL.to_owned(),
            arguments: Value::Object(serde_json::Map::new()),
        };
        match self.refuses(&call).await {
            Ok(()) => Held("refused".to_owned()),
            Err(why) => broken(
                format!("a tool that it has not got {why}"),
                "refuse calls of tools that are not there",
            ),
        }
    }

    async fn cancelled(&mut self, call: &Call) -> Found {
        let fix = "a call that was cancelled must not take others with it";
        let connection = match self.running().await {
            Ok(connection) => connection,
            Err(why) => return broken(why, fix),
        };
        // Before it can have begun, and while it may be at it.
        for patience in [0, 1, 4, 16, 64].map(Duration::from_millis) {
            let asked = connection.call(&call.tool, &call.arguments);
            let _ = tokio::time::timeout(patience, asked).await;
        }
        if !lives(connection).await {
            return broken("it ended when a call was cancelled".to_owned(), fix);
        }
        match self.call(call).await {
            Ok(_) => Held("the next call was answered".to_owned()),
            Err((why, _)) => broken(format!("the next call {why}"), fix),
        }
    }

    async fn at_once(&mut self, call: &Call) -> Found {
        let fix = "answer each request by its own id, in whatever order";
        let connection = match self.running().await {
            Ok(connection) => connection,
            Err(why) => return broken(why, fix),
        };
        let one = || connection.call(&call.tool, &call.arguments);
        match tokio::join!(one(), one()) {
            (Ok(_), Ok(_)) => Held("both answered".to_owned()),
            (Err(error), _) | (_, Err(error)) => broken(unanswered(&error), fix),
        }
    }

    /// Ends it; whoever has to be ended did not end.
    async fn ends(&mut self) -> Found {
        let fix = "end when standard input closes, on `Shutdown`, or at least on SIGTERM";
        if let Err(why) = self.running().await {
            return broken(why, fix);
        }
        let Some(alone) = self.alone.take() else {
            return broken("it does not run".to_owned(), fix);
        };
        let wished = self.placed.manifest.lifecycle.graceful_shutdown_timeout;
        let grace = Duration::from(wished).min(MOST_GRACE);
        let connection = alone.connection();
        let by_itself = async { tokio::time::timeout(grace, connection.gone()).await.is_ok() };
        // Nobody ends it by force before its time is over.
        let force = grace.saturating_add(Duration::from_secs(1));
        let ((), by_itself) = tokio::join!(connection.stop(force), by_itself);
        match by_itself {
            true => Held("by itself, and nothing is left of it".to_owned()),
            false => broken(format!("it did not end within {} s", grace.as_secs()), fix),
        }
    }

    async fn again(&mut self, before: &[ForeignTool]) -> Found {
        let connection = match self.running().await {
            Ok(connection) => connection,
            Err(why) => return broken(why, "it must start as often as somebody starts it"),
        };
        let pins = |tools: &[ForeignTool]| -> BTreeMap<String, Digest> {
            let pins = tools.iter().map(|tool| (tool.name.clone(), pin_of(tool)));
            pins.collect()
        };
        let (before, now) = (pins(before), pins(&connection.tools()));
        connection.stop(Duration::ZERO).await;
        let differs = before
            .iter()
            .find(|(name, pin)| now.get(*name) != Some(pin));
        let added = now.keys().find(|name| !before.contains_key(*name));
        match differs.map(|(name, _)| name).or(added) {
            None => Held("the same tools in the same words".to_owned()),
            Some(name) => broken(
                format!("it tells something else about `{name}`"),
                "always tell the same: a person reviews the words of a tool, and others are not \
                 offered",
            ),
        }
    }

    /// What it was denied all the while.
    fn asked(&mut self, since: &mut u64) {
        // Decisions are recorded behind a queue.
        let _ = self.bench.now();
        let name = self.name().to_owned();
        let denied = self.bench.decisions(since, &name).into_iter();
        let denied = denied.filter(|record| record.verdict != Verdict::Allow);
        let (mut undeclared, mut declared) = (BTreeSet::new(), BTreeSet::new());
        for record in denied {
            let wanted = capability(&record);
            let covers = self.placed.manifest.capabilities.iter();
            let mut covers = covers.map(|pattern| pattern.as_str());
            match covers.any(|pattern| matches(pattern, &wanted)) {
                true => declared.insert(wanted),
                false => undeclared.insert(wanted),
            };
        }
        let list = |all: BTreeSet<String>| all.into_iter().collect::<Vec<_>>().join("`, `");
        let found = match (undeclared.is_empty(), declared.is_empty()) {
            (false, _) => broken(
                format!("it asked for `{}` and was denied it", list(undeclared)),
                "name it in `capabilities`, or do without",
            ),
            (true, false) => Held(format!("policy denied `{}`", list(declared))),
            (true, true) => Held("nothing was denied".to_owned()),
        };
        self.insert("undeclared", found);
    }

    /// Calls it with what fits; why that did not work, and what to do.
    async fn call(&mut self, call: &Call) -> Result<ToolOutput, (String, &'static str)> {
        let answer = "answer each call; `fluffy plugin dev` shows what it says meanwhile";
        let connection = self.running().await.map_err(|why| (why, answer))?;
        let called = connection.call(&call.tool, &call.arguments).await;
        called.map_err(|error| match error {
            CallPluginError::Refused { text } => (
                format!("was refused, although it fits the schema: {}", short(&text)),
                "make the schema say what the tool takes; what only this call cannot have is an \
                 answer that failed, and no refusal",
            ),
            error => (unanswered(&error), answer),
        })
    }

    /// Whether a call that should not work does not, and harms nothing.
    async fn refuses(&mut self, call: &Call) -> Result<(), String> {
        let connection = self.running().await?;
        let called = connection.call(&call.tool, &call.arguments).await;
        let lives = lives(connection).await;
        match called {
            Ok(output) if output.outcome == ToolOutcome::Done => {
                Err("was answered as if it were right".to_owned())
            }
            Err(CallPluginError::Refused { .. } | CallPluginError::NoSuchTool { .. }) | Ok(_)
                if lives =>
            {
                Ok(())
            }
            Err(error) if lives => Err(unanswered(&error)),
            _ => Err("ended the plugin".to_owned()),
        }
    }
}

/// A call that is tried.
struct Call {
    tool: String,
    arguments: Value,
}

impl Call {
    fn fitting(tool: &ForeignTool) -> Self {
        Self {
            tool: tool.name.clone(),
            arguments: sample::fitting(&tool.parameters),
        }
    }

    fn shown(&self) -> String {
        format!("{} {}", self.tool, short(&self.arguments.to_string()))
    }
}

/// The tools of a plugin, only to see whether a session would take them.
struct Told {
    name: String,
    sandbox: SandboxId,
    tools: Vec<ForeignTool>,
}

impl ToolSource for Told {
    fn name(&self) -> &str {
        &self.name
    }

    fn sandbox(&self) -> SandboxId {
        self.sandbox
    }

    fn tools(&self) -> Vec<ForeignTool> {
        self.tools.clone()
    }

    fn call<'a>(
        &'a self,
        _permit: Permit,
        tool: &'a str,
        _arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallToolError>> {
        let (tool, source) = (tool.to_owned(), "it is only looked at".into());
        Box::pin(async move { Err(CallToolError::Unavailable { tool, source }) })
    }
}

/// Whether it still runs; what it says about its health is another matter.
async fn lives(connection: &dyn Connection) -> bool {
    let health = connection.health().await;
    let gone = tokio::time::timeout(Duration::ZERO, connection.gone()).await;
    !matches!(health, Err(CallPluginError::Gone { .. })) && gone.is_err()
}

fn unanswered(error: &CallPluginError) -> String {
    format!("was not answered: {}", short(&error.to_string()))
}

/// A manifest that is refused, with the place of its first mistake.
fn refused(error: &ExamineError) -> Found {
    let ExamineError::Manifest { source, .. } = error else {
        return broken(
            explain(error),
            "see docs/plugin-guide.md for what a plugin is",
        );
    };
    let all: Vec<String> = source
        .errors()
        .map(|one| {
            let place = format!("{}:{}", one.place.line, one.place.column);
            format!("{place}: {}: {}", one.what, one.why)
        })
        .collect();
    let fix = source.errors().next().map(|one| one.help.clone());
    broken(all.join("; "), &fix.unwrap_or_default())
}

fn broken(why: String, fix: &str) -> Found {
    let fix = fix.to_owned();
    Broken { why, fix }
}

fn short(text: &str) -> String {
    text.chars().take(200).collect()
}
