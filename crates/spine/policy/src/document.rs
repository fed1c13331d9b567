//! A policy file: YAML in, compiled rules or a refusal with line and column.
//!
//! Nothing half-loads: one error anywhere and there is no policy. What is
//! legal but pointless becomes a warning (see `lint.rs`). This module
//! gives the file its shape; what rules mean is in [`crate::rule`].

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use fluffy_base::Digest;

use crate::action::ActionSet;
use crate::diagnostic::{Diagnostic, Place, RefusedText};
use crate::glob::GlobSet;
use crate::host::{HostPattern, HostPatternError};
use crate::lint;
use crate::reader::{Fields, Measure, Placed, Reader};
use crate::rule::{Condition, Constraints, Effect, Label, Origin, Rule};
use crate::templates::{self, AddedTemplate};
use crate::word::Category;
use crate::yaml::{self, Node, Value};

/// The most rules one file may have.
pub const MAX_RULES: usize = 50_000;

pub(crate) const FILE_FIELDS: &[&str] = &[
    "version",
    "capabilities",
    "network_allow",
    "templates",
    "tdd_exemptions",
    "sanitize",
];
pub(crate) const RULE_FIELDS: &[&str] = &["name", "match", "do", "reason", "except", "constraints"];
pub(crate) const CONDITION_FIELDS: &[&str] = &[
    "action",
    "path_glob",
    "host",
    "caller",
    "caller_tag",
    "mode",
    "state",
    "template",
    "tier",
    "tenant",
    "size",
    "lines",
];
pub(crate) const CONSTRAINT_FIELDS: &[&str] =
    &["require_sandbox", "max_file_size", "max_lines", "min_tier"];

/// One policy file, compiled.
#[derive(Debug, Clone)]
pub struct PolicyFile {
    origin: Origin,
    digest: Digest,
    pub(crate) rules: Vec<Rule>,
    exemptions: BTreeMap<Category, GlobSet>,
    sanitize: Vec<String>,
    templates: Vec<AddedTemplate>,
    warnings: Vec<Diagnostic>,
}

impl PolicyFile {
    /// Reads a file of the given origin; an empty one is valid.
    ///
    /// # Errors
    /// Everything that is wrong with the text.
    pub fn parse(text: &str, origin: Origin) -> Result<Self, RefusedText> {
        let mut reader = Reader::default();
        let file = yaml::read(text, yaml::POLICY, &mut reader.findings).and_then(|root| {
            FileReader {
                reader: &mut reader,
                origin,
            }
            .file(&root)
        });
        let digest = Digest::of(text.as_bytes());
        let (body, warnings) = reader.findings.finish(origin.as_str(), file)?;
        Ok(Self {
            origin,
            digest,
            rules: body.rules,
            exemptions: body.exemptions,
            sanitize: body.sanitize,
            templates: body.templates,
            warnings,
        })
    }

    /// Rules that stand inside another text, of which `digest` is the hash.
    pub(crate) fn inline(reader: &mut Reader, node: &Node<'_>, digest: Digest) -> Self {
        let origin = Origin::Project;
        let (mut rules, mut places) = (Vec::new(), Vec::new());
        FileReader { reader, origin }.rules(node, &mut rules, &mut places);
        Self {
            origin,
            digest,
            rules,
            exemptions: BTreeMap::new(),
            sanitize: Vec::new(),
            templates: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Where the file belongs.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// The hash of the text, by which a reviewed copy is pinned.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// What is legal but pointless.
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }

    /// The paths that a category of exemptions covers.
    #[must_use]
    pub fn exemption(&self, category: Category) -> Option<&GlobSet> {
        self.exemptions.get(&category)
    }

    /// Every category of exemptions that it speaks of.
    pub fn exemptions(&self) -> impl Iterator<Item = (&Category, &GlobSet)> {
        self.exemptions.iter()
    }

    /// The templates of sandboxes that it adds.
    #[must_use]
    pub fn templates(&self) -> &[AddedTemplate] {
        &self.templates
    }

    /// The policy's own shapes of secrets, as regular expressions.
    #[must_use]
    pub fn sanitize_patterns(&self) -> &[String] {
        &self.sanitize
    }
}

/// What a rule or the like was read into, before it has an owner.
#[derive(Debug, Default)]
struct Body {
    rules: Vec<Rule>,
    exemptions: BTreeMap<Category, GlobSet>,
    sanitize: Vec<String>,
    templates: Vec<AddedTemplate>,
}

struct FileReader<'r> {
    reader: &'r mut Reader,
    origin: Origin,
}

impl FileReader<'_> {
    fn file(&mut self, root: &Node<'_>) -> Option<Body> {
        if root.value == Value::Null {
            return Some(Body::default());
        }
        let fields = self.reader.fields(root, "the policy", FILE_FIELDS)?;
        self.version(fields);
        let mut body = Body::default();
        let mut places = Vec::new();
        if let Some(node) = fields.get("capabilities") {
            self.rules(node, &mut body.rules, &mut places);
        }
        lint::check(&body.rules, &places, &mut self.reader.findings);
        if let Some(node) = fields.get("network_allow") {
            body.rules
                .extend(self.network_allow(node).unwrap_or_default());
        }
        if let Some(node) = fields.get("tdd_exemptions") {
            body.exemptions = self.exemptions(node).unwrap_or_default();
        }
        if let Some(node) = fields.get("templates") {
            body.templates = self.templates(node).unwrap_or_default();
        }
        if let Some(node) = fields.get("sanitize") {
            body.sanitize = self.sanitize(node).unwrap_or_default();
        }
        Some(body)
    }

    fn version(&mut self, fields: Fields<'_>) {
        match fields.get("version") {
            None => {
                let place = Place {
                    length: 0,
                    ..fields.place
                };
                self.reader.missing(
                    place,
                    "the policy",
                    "version",
                    "start the file with `version: 1`",
                );
            }
            Some(node) => {
                let known = matches!(&node.value, Value::Text { text, plain: true } if text == "1");
                if !known {
                    self.reader.findings.error(
                        node.place,
                        "this version of policies is not known",
                        "a policy written for another version may mean something else",
                        "write `version: 1`",
                    );
                }
            }
        }
    }

    fn rules(&mut self, node: &Node<'_>, rules: &mut Vec<Rule>, places: &mut Vec<Place>) {
        // `capabilities:` with nothing below it is a list that is still empty.
        if node.value == Value::Null {
            return;
        }
        let Some(items) = self.reader.list(node, "`capabilities`") else {
            return;
        };
        if items.len() > MAX_RULES {
            self.reader.findings.error(
                node.place,
                format!("more than {MAX_RULES} rules"),
                "a policy is bounded",
                "combine rules: a list in one rule is as fast as many rules",
            );
            return;
        }
        let mut names = HashSet::with_capacity(items.len());
        rules.reserve_exact(items.len());
        for item in items {
            let Some((rule, place)) = self.rule(item) else {
                continue;
            };
            if !names.insert(rule.label.name.clone()) {
                self.reader.findings.error(
                    place,
                    format!("the name `{}` is taken", rule.label.name),
                    "decisions and approvals name rules",
                    "give each rule its own name",
                );
            }
            rules.push(rule);
            places.push(place);
        }
    }

    fn rule(&mut self, node: &Node<'_>) -> Option<(Rule, Place)> {
        let fields = self.reader.fields(node, "a rule", RULE_FIELDS)?;
        let name = self.rule_name(fields);
        let effect = self.effect(fields);
        let when = match fields.get("match") {
            Some(node) => self.condition(node, "`match`"),
            None => {
                let help = "write `match: {}` if every request is meant";
                self.reader.missing(fields.place, "the rule", "match", help);
                None
            }
        };
        let reason = match fields.get("reason") {
            Some(node) => self
                .reader
                .text(node, "`reason`")
                .map(|each| shorten(each.text)),
            None => Some(String::new()),
        };
        let except = match fields.get("except") {
            Some(node) => self.exceptions(node),
            None => Some(Vec::new()),
        };
        let constraints = match fields.get("constraints") {
            Some(node) => self.constraints(node, effect?),
            None => Some(Constraints::default()),
        };
        let (name, effect) = (name?, effect?);
        let label = Label {
            origin: self.origin,
            name: name.text.to_owned(),
            reason: reason?,
            line: fields.place.line,
        };
        let rule = Rule {
            label: Arc::new(label),
            effect,
            when: when?,
            except: except?,
            constraints: constraints?,
        };
        Some((rule, name.place))
    }

    fn rule_name<'n>(&mut self, fields: Fields<'n>) -> Option<Placed<'n>> {
        let Some(node) = fields.get("name") else {
            self.reader.missing(
                fields.place,
                "the rule",
                "name",
                "give the rule a name of its own",
            );
            return None;
        };
        let name = self.reader.text(node, "`name`")?;
        let fits = |c: char| c.is_alphanumeric() || " _.-".contains(c);
        let valid = (1..=128).contains(&name.text.len()) && name.text.chars().all(fits);
        if !valid {
            self.reader.findings.error(
                name.place,
                "this is not a name for a rule",
                "names appear in decisions, approvals and on the command line",
                "use up to 128 letters, digits, spaces, `_`, `.` and `-`",
            );
        }
        valid.then_some(name)
    }

    /// The effect, in which `None` inside means `pass`.
    fn effect(&mut self, fields: Fields<'_>) -> Option<Option<Effect>> {
        let help = "write `do: allow`, `do: deny` or `do: require_review`";
        let Some(node) = fields.get("do") else {
            self.reader.missing(fields.place, "the rule", "do", help);
            return None;
        };
        let word = self.reader.text(node, "`do`")?;
        let effect = match word.text {
            "allow" => Some(Effect::Allow),
            "deny" => Some(Effect::Deny),
            "require_review" => Some(Effect::RequireReview),
            "pass" => None,
            _ => {
                let shown = shorten(word.text);
                let why = "a rule says one of three things, or passes";
                self.reader.findings.error(
                    word.place,
                    format!("`{shown}` is not an effect"),
                    why,
                    help,
                );
                return None;
            }
        };
        if self.origin == Origin::Organisation && effect == Some(Effect::Allow) {
            self.reader.findings.error(
                word.place,
                "an organisation's file cannot allow",
                "it can only narrow what users and projects allow",
                "move the rule to the user's or the project's file, or make it a deny",
            );
        }
        Some(effect)
    }

    fn exceptions(&mut self, node: &Node<'_>) -> Option<Vec<Condition>> {
        let items = self.reader.list(node, "`except`")?;
        let read: Vec<_> = items.iter().map(|item| self.exception(item)).collect();
        read.into_iter().collect()
    }

    fn exception(&mut self, node: &Node<'_>) -> Option<Condition> {
        // Said by name, because "unknown field" would send people in circles.
        if let Value::Map(entries) = &node.value
            && let Some((key, _)) = entries.iter().find(|(key, _)| key.text == "except")
        {
            self.reader.findings.error(
                key.place,
                "an `except` inside an `except`",
                "an exception has no exceptions of its own",
                "write a second rule",
            );
            return None;
        }
        let condition = self.condition(node, "an `except`")?;
        if condition == Condition::default() {
            self.reader.findings.error(
                node.place,
                "an `except` without conditions",
                "it would except everything",
                "say what is excepted, or remove the rule",
            );
            return None;
        }
        Some(condition)
    }

    fn condition(&mut self, node: &Node<'_>, what: &str) -> Option<Condition> {
        let fields = self.reader.fields(node, what, CONDITION_FIELDS)?;
        let mut condition = Condition::default();
        let mut complete = true;
        for (key, node) in fields.iter() {
            complete &= read_field(self.reader, &mut condition, &key.text, node);
            warn_if_empty(self.reader, node, &key.text);
        }
        complete.then_some(condition)
    }

    fn constraints(&mut self, node: &Node<'_>, effect: Option<Effect>) -> Option<Constraints> {
        if effect != Some(Effect::Allow) {
            self.reader.findings.error(
                node.place,
                "constraints on a rule that does not allow",
                "a constraint limits what an allow covers",
                "move what it says into `match`",
            );
            return None;
        }
        let fields = self
            .reader
            .fields(node, "`constraints`", CONSTRAINT_FIELDS)?;
        let mut constraints = Constraints::default();
        if let Some(node) = fields.get("require_sandbox") {
            constraints.require_sandbox = self.reader.flag(node, "`require_sandbox`")?;
        }
        if let Some(node) = fields.get("max_file_size") {
            constraints.max_file_size = Some(self.reader.size(node, "`max_file_size`")?);
        }
        if let Some(node) = fields.get("max_lines") {
            constraints.max_lines = Some(self.reader.count(node, "`max_lines`")?);
        }
        if let Some(node) = fields.get("min_tier") {
            let word = self.reader.text(node, "`min_tier`")?;
            constraints.min_tier = Some(self.reader.word(word)?);
        }
        Some(constraints)
    }

    /// Each group is an allow for `net.connect`.
    fn network_allow(&mut self, node: &Node<'_>) -> Option<Vec<Rule>> {
        let groups = self.reader.entries(node, "`network_allow`")?;
        if self.origin == Origin::Organisation {
            self.reader.findings.error(
                node.place,
                "an organisation's file cannot allow",
                "it can only narrow what users and projects allow",
                "move the hosts to the user's or the project's file",
            );
            return None;
        }
        let mut rules = Vec::new();
        for (key, node) in groups.iter() {
            let texts = self.reader.texts(node, "a group of hosts")?;
            let hosts: Vec<_> = texts
                .into_iter()
                .map(|each| read_host(self.reader, each, HostPattern::parse_with_port))
                .collect();
            let mut actions = ActionSet::default();
            if actions.add("net.connect").is_err() {
                return None;
            }
            let label = Label {
                origin: self.origin,
                name: format!("network_allow.{}", shorten(&key.text)),
                reason: String::new(),
                line: key.place.line,
            };
            rules.push(Rule {
                label: Arc::new(label),
                effect: Some(Effect::Allow),
                when: Condition {
                    actions: Some(actions),
                    host: Some(hosts.into_iter().collect::<Option<_>>()?),
                    ..Condition::default()
                },
                except: Vec::new(),
                constraints: Constraints::default(),
            });
        }
        Some(rules)
    }

    fn templates(&mut self, node: &Node<'_>) -> Option<Vec<AddedTemplate>> {
        if self.origin == Origin::Organisation {
            self.reader.findings.error(
                node.place,
                "an organisation's file cannot add templates",
                "it can only narrow what users and projects allow",
                "move the templates to the user's or the project's file",
            );
            return None;
        }
        templates::read(self.reader, node)
    }

    fn exemptions(&mut self, node: &Node<'_>) -> Option<BTreeMap<Category, GlobSet>> {
        let groups = self.reader.entries(node, "`tdd_exemptions`")?;
        let mut exemptions = BTreeMap::new();
        for (key, node) in groups.iter() {
            let word = Placed {
                text: &key.text,
                place: key.place,
            };
            let category = self.reader.word(word)?;
            exemptions.insert(category, self.reader.globs(node, "a list of exempt paths")?);
        }
        Some(exemptions)
    }

    fn sanitize(&mut self, node: &Node<'_>) -> Option<Vec<String>> {
        let fields = self.reader.fields(node, "`sanitize`", &["patterns"])?;
        let patterns = fields
            .get("patterns")
            .map(|node| self.reader.strings(node, "`patterns`"));
        patterns.unwrap_or_else(|| Some(Vec::new()))
    }
}

/// Reads one field into the condition; `false` if it is not usable.
fn read_field(reader: &mut Reader, condition: &mut Condition, name: &str, node: &Node<'_>) -> bool {
    fn fill<T>(slot: &mut Option<T>, value: Option<T>) -> bool {
        *slot = value;
        slot.is_some()
    }
    match name {
        "action" => fill(&mut condition.actions, read_actions(reader, node)),
        "path_glob" => fill(&mut condition.path, reader.globs(node, "`path_glob`")),
        "host" => fill(&mut condition.host, read_hosts(reader, node)),
        "caller" => fill(&mut condition.caller, reader.strings(node, "`caller`")),
        "caller_tag" => fill(
            &mut condition.caller_tag,
            reader.strings(node, "`caller_tag`"),
        ),
        "mode" => fill(&mut condition.mode, reader.words(node, "`mode`")),
        "state" => fill(&mut condition.state, reader.words(node, "`state`")),
        "template" => fill(&mut condition.template, reader.strings(node, "`template`")),
        "tier" => fill(&mut condition.tier, reader.words(node, "`tier`")),
        "tenant" => fill(&mut condition.tenant, reader.strings(node, "`tenant`")),
        "size" => fill(&mut condition.size, reader.comparisons(node, Measure::Size)),
        "lines" => fill(
            &mut condition.lines,
            reader.comparisons(node, Measure::Lines),
        ),
        _ => false,
    }
}

fn read_actions(reader: &mut Reader, node: &Node<'_>) -> Option<ActionSet> {
    let mut actions = ActionSet::default();
    let mut complete = true;
    for word in reader.texts(node, "`action`")? {
        if let Err(error) = actions.add(word.text) {
            complete = false;
            let help = match error.nearest {
                Some(word) => format!("did you mean `{word}`?"),
                None => {
                    "see the list in the policy guide; a plugin's are `plugin.<name>.*`".to_owned()
                }
            };
            let why = "a rule about an action that does not exist would never match";
            reader
                .findings
                .error(word.place, error.to_string(), why, help);
        }
    }
    complete.then_some(actions)
}

fn read_hosts(reader: &mut Reader, node: &Node<'_>) -> Option<Vec<HostPattern>> {
    let texts = reader.texts(node, "`host`")?;
    let hosts: Vec<_> = texts
        .into_iter()
        .map(|each| read_host(reader, each, HostPattern::parse))
        .collect();
    hosts.into_iter().collect()
}

fn read_host(
    reader: &mut Reader,
    placed: Placed<'_>,
    parse: fn(&str) -> Result<HostPattern, HostPatternError>,
) -> Option<HostPattern> {
    match parse(placed.text) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            let why = "hosts are compared exactly; only a leading `*.` stands for labels";
            let help = "write `example.com:443` or `*.example.com:443`";
            reader
                .findings
                .error(placed.place, error.to_string(), why, help);
            None
        }
    }
}

fn warn_if_empty(reader: &mut Reader, node: &Node<'_>, field: &str) {
    if matches!(&node.value, Value::List(items) if items.is_empty()) {
        reader.findings.warn(
            node.place,
            format!("`{field}` is empty and matches nothing"),
            "values of one list are alternatives, and there are none",
            "add a value, or remove the field to match everything",
        );
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(500).collect()
}
