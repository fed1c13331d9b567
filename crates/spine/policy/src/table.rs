//! The file of `fluffy policy test`: requests and the decisions they must get.
//!
//! Reads the text and runs the cases; opening the files that it names is the
//! caller's business. A principal with a template or tier counts as sandboxed.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use fluffy_base::id::SandboxId;
use fluffy_base::{Digest, Timestamp};
use serde::Serialize;

use crate::decision::Verdict;
use crate::diagnostic::{Place, RefusedText};
use crate::document::PolicyFile;
use crate::engine::Engine;
use crate::extension::Extensions;
use crate::grant::{BuildGrantError, Grant, GrantLists};
use crate::reader::{Fields, Placed, Reader};
use crate::request::{Context, Principal, PrincipalKind, Request};
use crate::rule::Origin;
use crate::yaml::{self, Node};

/// The most cases one table may have.
pub const MAX_CASES: usize = 10_000;

pub(crate) const TABLE_FIELDS: &[&str] = &["policy", "rules", "extensions", "cases"];
pub(crate) const CASE_FIELDS: &[&str] = &[
    "name", "as", "action", "resource", "context", "expect", "because",
];
pub(crate) const PRINCIPAL_FIELDS: &[&str] = &[
    "kind",
    "name",
    "tags",
    "grants",
    "deny",
    "workspace",
    "user",
];
pub(crate) const CONTEXT_FIELDS: &[&str] = &[
    "mode", "state", "template", "tier", "tenant", "size", "lines", "host", "port",
];

/// A table of cases, ready to run.
#[derive(Debug, Clone)]
pub struct TestTable {
    policy: PolicySource,
    extensions: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Debug, Clone)]
enum PolicySource {
    Path(String),
    Inline(PolicyFile),
}

#[derive(Debug, Clone)]
struct Case {
    name: String,
    line: u32,
    request: Request,
    expect: Verdict,
    because: Vec<String>,
}

/// How one case came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseResult {
    /// The case's name.
    pub name: String,
    /// Its line in the table.
    pub line: u32,
    /// What it must be.
    pub expected: Verdict,
    /// What it is.
    pub actual: Verdict,
    /// Every rule that spoke, as `origin:name`.
    pub spoke: Vec<String>,
    /// The rules of `because` that did not speak.
    pub silent: Vec<String>,
}

impl CaseResult {
    /// Whether the case holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.expected == self.actual && self.silent.is_empty()
    }
}

impl TestTable {
    /// Reads a table.
    ///
    /// # Errors
    /// Everything that is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, RefusedText> {
        let mut reader = Reader::default();
        let table = yaml::read(text, yaml::POLICY, &mut reader.findings).and_then(|root| {
            let digest = Digest::of(text.as_bytes());
            read_table(&mut reader, &root, digest)
        });
        let (table, _) = reader.findings.finish("the test table", table)?;
        Ok(table)
    }

    /// The policy file to read, beside the table; none if the rules are inline.
    #[must_use]
    pub fn policy_path(&self) -> Option<&str> {
        match &self.policy {
            PolicySource::Path(path) => Some(path),
            PolicySource::Inline(_) => None,
        }
    }

    /// The extensions to load, beside the table.
    #[must_use]
    pub fn extension_paths(&self) -> &[String] {
        &self.extensions
    }

    /// The engine to test; `policy_text` is the text at [`Self::policy_path`].
    ///
    /// # Errors
    /// The policy is refused.
    pub fn engine(&self, policy_text: &str) -> Result<Engine, RefusedText> {
        let file = match &self.policy {
            PolicySource::Path(_) => PolicyFile::parse(policy_text, Origin::Project)?,
            PolicySource::Inline(file) => file.clone(),
        };
        Ok(Engine::build(vec![file], 0))
    }

    /// Runs every case.
    pub fn run(
        &self,
        engine: &Engine,
        now: Timestamp,
        extensions: &dyn Extensions,
    ) -> Vec<CaseResult> {
        let run = |case: &Case| {
            let decision = engine.evaluate(&case.request, now, extensions);
            let spoke: Vec<String> = decision
                .spoke()
                .iter()
                .map(|voice| voice.label.id())
                .collect();
            let names: HashSet<&str> = decision
                .spoke()
                .iter()
                .map(|voice| voice.label.name.as_str())
                .collect();
            let silent = |rule: &&String| !names.contains(rule.as_str()) && !spoke.contains(*rule);
            CaseResult {
                name: case.name.clone(),
                line: case.line,
                expected: case.expect,
                actual: decision.verdict(),
                silent: case.because.iter().filter(silent).cloned().collect(),
                spoke,
            }
        };
        self.cases.iter().map(run).collect()
    }
}

fn read_table(reader: &mut Reader, root: &Node<'_>, digest: Digest) -> Option<TestTable> {
    let fields = reader.fields(root, "the test table", TABLE_FIELDS)?;
    let policy = match (fields.get("policy"), fields.get("rules")) {
        (Some(node), None) => {
            let path = reader.text(node, "`policy`")?;
            PolicySource::Path(path.text.to_owned())
        }
        (None, Some(node)) => PolicySource::Inline(PolicyFile::inline(reader, node, digest)),
        (both, _) => {
            let place = both.map_or(fields.place, |node| node.place);
            reader.findings.error(
                place,
                "the table needs either `policy` or `rules`",
                "each case is decided by one policy",
                "write `policy: policy.yaml`, or `rules:` with the rules inline",
            );
            return None;
        }
    };
    let extensions = match fields.get("extensions") {
        Some(node) => reader.strings(node, "`extensions`")?,
        None => Vec::new(),
    };
    let Some(node) = fields.get("cases") else {
        reader.missing(
            fields.place,
            "the test table",
            "cases",
            "add at least one case",
        );
        return None;
    };
    let items = reader.list(node, "`cases`")?;
    if items.is_empty() || items.len() > MAX_CASES {
        reader.findings.error(
            node.place,
            format!("a table has between 1 and {MAX_CASES} cases"),
            "a table without cases would always hold",
            "add a case, or split the table",
        );
        return None;
    }
    let mut names = HashSet::new();
    let read: Vec<_> = items
        .iter()
        .map(|item| read_case(reader, item, &mut names))
        .collect();
    let cases = read.into_iter().collect::<Option<_>>()?;
    Some(TestTable {
        policy,
        extensions,
        cases,
    })
}

fn read_case(reader: &mut Reader, node: &Node<'_>, names: &mut HashSet<String>) -> Option<Case> {
    let fields = reader.fields(node, "a case", CASE_FIELDS)?;
    let name = required(reader, fields, ("the case", "name"), "give the case a name")?;
    if !names.insert(name.text.to_owned()) {
        reader.findings.error(
            name.place,
            format!("the name `{}` is taken", name.text),
            "results are reported by name",
            "give each case its own name",
        );
    }
    let action = required(
        reader,
        fields,
        ("the case", "action"),
        "write for example `action: fs.write`",
    )?;
    let resource = match fields.get("resource") {
        Some(node) => Some(reader.text(node, "`resource`")?.text.to_owned()),
        None => None,
    };
    let context = match fields.get("context") {
        Some(node) => read_context(reader, node)?,
        None => Context::default(),
    };
    let Some(node) = fields.get("as") else {
        let help =
            "write `as: { name: agent, grants: [\"*\"], workspace: [\"*\"], user: [\"*\"] }`";
        reader.missing(fields.place, "the case", "as", help);
        return None;
    };
    let mut principal = read_principal(reader, node)?;
    if context.template.is_some() || context.tier.is_some() {
        principal.sandbox = Some(SandboxId::from_bits(1));
    }
    let help = "write `expect: allow`, `expect: deny` or `expect: require_review`";
    let expect = required(reader, fields, ("the case", "expect"), help)?;
    let expect = read_verdict(reader, expect)?;
    let because = match fields.get("because") {
        Some(node) => reader.strings(node, "`because`")?,
        None => Vec::new(),
    };
    Some(Case {
        name: name.text.to_owned(),
        line: fields.place.line,
        request: Request {
            principal,
            action: action.text.to_owned(),
            resource,
            context,
        },
        expect,
        because,
    })
}

fn required<'n>(
    reader: &mut Reader,
    fields: Fields<'n>,
    (what, name): (&str, &str),
    help: &str,
) -> Option<Placed<'n>> {
    match fields.get(name) {
        Some(node) => reader.text(node, &format!("`{name}`")),
        None => {
            reader.missing(fields.place, what, name, help);
            None
        }
    }
}

fn read_verdict(reader: &mut Reader, word: Placed<'_>) -> Option<Verdict> {
    match word.text {
        "allow" => Some(Verdict::Allow),
        "deny" => Some(Verdict::Deny),
        "require_review" => Some(Verdict::RequireReview),
        text => {
            let shown: String = text.chars().take(64).collect();
            reader.findings.error(
                word.place,
                format!("`{shown}` is not a decision"),
                "a decision is one of three words",
                "write `allow`, `deny` or `require_review`",
            );
            None
        }
    }
}

fn read_principal(reader: &mut Reader, node: &Node<'_>) -> Option<Principal> {
    let fields = reader.fields(node, "`as`", PRINCIPAL_FIELDS)?;
    let name = required(
        reader,
        fields,
        ("the principal", "name"),
        "write `name: agent`",
    )?;
    let kind = match fields.get("kind") {
        Some(node) => read_kind(reader, node)?,
        None => PrincipalKind::Agent,
    };
    let mut list = |field: &str| match fields.get(field) {
        Some(node) => reader.strings(node, &format!("`{field}`")),
        None => Some(Vec::new()),
    };
    let tags: BTreeSet<String> = list("tags")?.into_iter().collect();
    let lists = GrantLists {
        capabilities: list("grants")?,
        deny_capabilities: list("deny")?,
        workspace: list("workspace")?,
        user: list("user")?,
    };
    match Grant::build(&lists) {
        Ok(grant) => Some(Principal {
            tags,
            ..Principal::new(kind, name.text, Arc::new(grant))
        }),
        Err(error) => {
            report_grant(reader, node.place, &error);
            None
        }
    }
}

fn read_kind(reader: &mut Reader, node: &Node<'_>) -> Option<PrincipalKind> {
    let word = reader.text(node, "`kind`")?;
    Some(match word.text {
        "user" => PrincipalKind::User,
        "agent" => PrincipalKind::Agent,
        "plugin" => PrincipalKind::Plugin,
        "service" => PrincipalKind::Service,
        "node" => PrincipalKind::Node,
        _ => {
            reader.findings.error(
                word.place,
                "this is not a kind of principal",
                "a kind that does not exist would never match",
                "use one of user, agent, plugin, service, node",
            );
            return None;
        }
    })
}

fn report_grant(reader: &mut Reader, place: Place, error: &BuildGrantError) {
    let help = "see the table of capability patterns in the policy guide";
    let why = "a pattern that is ignored could drop a denial";
    reader.findings.error(place, error.to_string(), why, help);
}

fn read_context(reader: &mut Reader, node: &Node<'_>) -> Option<Context> {
    let fields = reader.fields(node, "`context`", CONTEXT_FIELDS)?;
    let mut context = Context::default();
    if let Some(node) = fields.get("mode") {
        let word = reader.text(node, "`mode`")?;
        context.mode = Some(reader.word(word)?);
    }
    if let Some(node) = fields.get("state") {
        let word = reader.text(node, "`state`")?;
        context.state = Some(reader.word(word)?);
    }
    if let Some(node) = fields.get("tier") {
        let word = reader.text(node, "`tier`")?;
        context.tier = Some(reader.word(word)?);
    }
    for (name, slot) in [
        ("template", &mut context.template),
        ("tenant", &mut context.tenant),
        ("host", &mut context.host),
    ] {
        if let Some(node) = fields.get(name) {
            *slot = Some(reader.text(node, &format!("`{name}`"))?.text.to_owned());
        }
    }
    if let Some(node) = fields.get("size") {
        context.size = Some(reader.size(node, "`size`")?);
    }
    if let Some(node) = fields.get("lines") {
        context.lines = Some(reader.count(node, "`lines`")?);
    }
    if let Some(node) = fields.get("port") {
        let port = reader.count(node, "`port`")?;
        let Ok(port) = u16::try_from(port) else {
            reader.findings.error(
                node.place,
                format!("`{port}` is not a port"),
                "ports end at 65535",
                "write for example `443`",
            );
            return None;
        };
        context.port = Some(port);
    }
    Some(context)
}
