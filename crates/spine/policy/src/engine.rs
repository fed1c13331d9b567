//! The engine: layers, precedence, one decision for one request.
//!
//! Immutable once built, so any number of threads may ask it. All rules of a
//! layer are judged, so who spoke never depends on order; a deny skips the
//! later layers. It reads no clock and no file: the caller brings the time and
//! the extensions. [`crate::rule`] judges a single rule.

use std::collections::BTreeMap;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fluffy_base::id::DecisionId;
use fluffy_base::{Digest, Timestamp};

use crate::builtin::Builtins;
use crate::decision::{Decision, Judged, Layer, Spoke, TokenOutcome, TokenUse, Verdict};
use crate::diagnostic::{Diagnostic, RefusedText};
use crate::document::PolicyFile;
use crate::extension::{Extensions, Opinion};
use crate::glob::GlobSet;
use crate::index::Index;
use crate::request::Request;
use crate::rule::{Effect, Label, Origin, Outcome, Rule};
use crate::starter;
use crate::subject::{Facts, Subject};
use crate::templates::AddedTemplate;
use crate::token::{Presented, Redeemed, TokenVault};
use crate::word::Category;

/// The texts that a policy consists of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sources<'a> {
    /// The organisation's file, which can only narrow.
    pub organisation: Option<&'a str>,
    /// The user's own file.
    pub user: Option<&'a str>,
    /// The reviewed copy of the project's file; without one, the starter holds.
    pub project: Option<&'a str>,
}

/// A compiled policy, ready to decide.
#[derive(Debug)]
pub struct Engine {
    builtins: Vec<Rule>,
    rules: Vec<Rule>,
    templates: Vec<AddedTemplate>,
    exemptions: BTreeMap<Category, GlobSet>,
    sanitize: Vec<String>,
    index: Index,
    warnings: Vec<Diagnostic>,
    digest: Digest,
    epoch: u64,
    labels: DecisionLabels,
}

impl Engine {
    /// Reads and compiles the sources.
    ///
    /// # Errors
    /// The first file that is refused; nothing half-loads.
    pub fn load(sources: &Sources<'_>, epoch: u64) -> Result<Self, RefusedText> {
        let mut files = Vec::new();
        for (text, origin) in [
            (sources.organisation, Origin::Organisation),
            (sources.user, Origin::User),
            (sources.project, Origin::Project),
        ] {
            if let Some(text) = text {
                files.push(PolicyFile::parse(text, origin)?);
            }
        }
        if sources.project.is_none() {
            files.push(PolicyFile::parse(starter::STARTER, Origin::Shipped)?);
        }
        Ok(Self::build(files, epoch))
    }

    /// Compiles files that were read before.
    #[must_use]
    pub fn build(files: Vec<PolicyFile>, epoch: u64) -> Self {
        Self::build_with_builtins(files, epoch, Builtins::standard())
    }

    /// As [`Engine::build`] with other built-in rules, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn build_with_builtins(mut files: Vec<PolicyFile>, epoch: u64, builtins: Builtins) -> Self {
        files.sort_by_key(|file| (file.origin(), file.digest()));
        let digest = digest_of(&files);
        let warnings = files
            .iter()
            .flat_map(|file| file.warnings().iter().cloned());
        let warnings = warnings.collect();
        let templates = added_templates(&files);
        let mut exemptions = BTreeMap::new();
        for file in &files {
            for (category, globs) in file.exemptions() {
                // An organisation's word about a category is the last one.
                exemptions.entry(*category).or_insert_with(|| globs.clone());
            }
        }
        let mut sanitize: Vec<String> = Vec::new();
        for pattern in files.iter().flat_map(PolicyFile::sanitize_patterns) {
            if !sanitize.contains(pattern) {
                sanitize.push(pattern.clone());
            }
        }
        let rules: Vec<Rule> = files.into_iter().flat_map(|file| file.rules).collect();
        Self {
            builtins: builtins.rules,
            index: Index::build(&rules),
            rules,
            templates,
            exemptions,
            sanitize,
            warnings,
            digest,
            epoch,
            labels: DecisionLabels::default(),
        }
    }

    /// The templates of sandboxes that the sources add to the built-in ones.
    #[must_use]
    pub fn templates(&self) -> &[AddedTemplate] {
        &self.templates
    }

    /// The paths that may change without a test first once a category of
    /// exemptions was granted.
    #[must_use]
    pub fn exemption(&self, category: Category) -> Option<&GlobSet> {
        self.exemptions.get(&category)
    }

    /// Shapes of secrets that the sources add to the built-in ones.
    #[must_use]
    pub fn sanitize_patterns(&self) -> &[String] {
        &self.sanitize
    }

    /// What is legal but pointless in the sources.
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }

    /// The hash of all sources.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// The epoch; whoever replaces an engine raises it.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Decides a request.
    pub fn evaluate(
        &self,
        request: &Request,
        now: Timestamp,
        extensions: &dyn Extensions,
    ) -> Decision {
        self.decide(request, None, now, extensions)
    }

    /// Decides a request that came with a token.
    pub fn evaluate_with_token(
        &self,
        request: &Request,
        presented: &Presented<'_>,
        vault: &TokenVault,
        now: Timestamp,
        extensions: &dyn Extensions,
    ) -> Decision {
        self.decide(request, Some((presented, vault)), now, extensions)
    }

    fn decide(
        &self,
        request: &Request,
        token: Option<(&Presented<'_>, &TokenVault)>,
        now: Timestamp,
        extensions: &dyn Extensions,
    ) -> Decision {
        let mut voices = Voices::default();
        let subject = match Subject::read(request) {
            Ok(subject) => subject,
            Err(error) => {
                voices.refuse(Layer::Request, "request", chain_of(&error));
                let judged = Judged {
                    action: request.action.chars().take(256).collect(),
                    resource: request
                        .resource
                        .as_ref()
                        .map(|text| text.chars().take(4096).collect()),
                    capability: None,
                };
                return self.conclude(voices, judged, now);
            }
        };
        check_grant(request, &subject, &mut voices);
        if !voices.denied {
            self.run_layers(&subject, token, now, extensions, &mut voices);
        }
        self.conclude(voices, subject.into_judged(), now)
    }

    /// Layers 1 to 4; each ends the evaluation when it denies.
    fn run_layers(
        &self,
        subject: &Subject<'_>,
        token: Option<(&Presented<'_>, &TokenVault)>,
        now: Timestamp,
        extensions: &dyn Extensions,
        voices: &mut Voices,
    ) {
        let facts = subject.facts();
        for rule in &self.builtins {
            voices.hear(Layer::Builtin, rule, &facts);
        }
        if voices.denied {
            return;
        }
        if let Some((presented, vault)) = token {
            let redeemed = vault.redeem(self, &facts, subject, presented, now);
            if voices.hear_token(presented, redeemed) {
                return;
            }
        }
        for number in self.index.candidates(&facts) {
            if let Some(rule) = self.rules.get(number as usize) {
                voices.hear(Layer::Rules, rule, &facts);
            }
        }
        if !voices.denied {
            for answer in extensions.ask(facts.request, now) {
                voices.hear_extension(answer);
            }
        }
    }

    fn conclude(&self, mut voices: Voices, subject: Judged, now: Timestamp) -> Decision {
        let verdict = match (voices.denied, voices.reviewed, voices.allowed) {
            (true, _, _) => Verdict::Deny,
            (false, true, _) => Verdict::RequireReview,
            (false, false, true) => Verdict::Allow,
            (false, false, false) => Verdict::Deny,
        };
        if voices.spoke.len() > 1 {
            voices
                .spoke
                .sort_by(|a, b| (a.layer, &a.label).cmp(&(b.layer, &b.label)));
        }
        Decision {
            id: self.labels.next(now),
            at: now,
            verdict,
            spoke: voices.spoke,
            token: voices.token,
            policy: self.digest,
            epoch: self.epoch,
            subject,
            extended: voices.extended,
        }
    }

    /// Every rule about the request's action, built-in ones first.
    pub(crate) fn rules_about(&self, facts: &Facts<'_>) -> impl Iterator<Item = (Layer, &Rule)> {
        let builtins = self.builtins.iter().filter(|rule| rule.is_about(facts));
        let builtins: Vec<&Rule> = builtins.collect();
        let numbers = self.index.about(facts);
        let filed = numbers
            .into_iter()
            .filter_map(|number| self.rules.get(number as usize));
        builtins
            .into_iter()
            .map(|rule| (Layer::Builtin, rule))
            .chain(filed.map(|rule| (Layer::Rules, rule)))
    }
}

fn digest_of(files: &[PolicyFile]) -> Digest {
    let mut text = String::from("fluffy policy 1\n");
    for file in files {
        text.push_str(file.origin().as_str());
        text.push(' ');
        text.push_str(&file.digest().to_string());
        text.push('\n');
    }
    Digest::of(text.as_bytes())
}

fn check_grant(request: &Request, subject: &Subject<'_>, voices: &mut Voices) {
    let gap = match &request.principal.grant {
        None => Some("the principal is not registered".to_owned()),
        Some(grant) => grant
            .check(&subject.capability)
            .err()
            .map(|gap| gap.to_string()),
    };
    if let Some(gap) = gap {
        voices.refuse(
            Layer::Grants,
            "grant",
            format!("`{}`: {gap}", subject.capability),
        );
    }
}

/// An error and its causes in one line.
fn chain_of(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Everything that has spoken so far.
#[derive(Debug, Default)]
struct Voices {
    spoke: Vec<Spoke>,
    allowed: bool,
    reviewed: bool,
    denied: bool,
    extended: bool,
    token: Option<TokenUse>,
}

impl Voices {
    fn say(&mut self, layer: Layer, label: Arc<Label>, effect: Effect) {
        match effect {
            Effect::Allow => self.allowed = true,
            Effect::RequireReview => self.reviewed = true,
            Effect::Deny => self.denied = true,
        }
        self.spoke.push(Spoke {
            layer,
            label,
            effect,
        });
    }

    fn hear(&mut self, layer: Layer, rule: &Rule, facts: &Facts<'_>) {
        if let Outcome::Speaks(effect) = rule.judge(facts) {
            self.say(layer, Arc::clone(&rule.label), effect);
        }
    }

    fn refuse(&mut self, layer: Layer, name: &str, reason: String) {
        self.say(layer, Label::of_engine(name, reason), Effect::Deny);
    }

    /// Whether the token ends the evaluation.
    fn hear_token(&mut self, presented: &Presented<'_>, redeemed: Redeemed) -> bool {
        let outcome = redeemed.outcome();
        self.token = Some(TokenUse {
            id: presented.token.id(),
            outcome,
        });
        let (claims, label) = match redeemed {
            Redeemed::Valid(claims, label) => (claims, label),
            Redeemed::Not(TokenOutcome::Forged) => {
                self.refuse(Layer::Token, "token", "the token is forged".to_owned());
                return true;
            }
            Redeemed::Not(TokenOutcome::Replayed) => {
                self.refuse(
                    Layer::Token,
                    "token",
                    "the token's counter was used before".to_owned(),
                );
                return true;
            }
            Redeemed::Not(_) => return false,
        };
        // An approval answers the reviews that it names, and nothing else.
        let answered = |voice: &Spoke| {
            voice.effect == Effect::RequireReview && claims.answers(&voice.label.id())
        };
        self.spoke.retain(|voice| !answered(voice));
        self.reviewed = self
            .spoke
            .iter()
            .any(|voice| voice.effect == Effect::RequireReview);
        self.say(Layer::Token, label, Effect::Allow);
        true
    }

    fn hear_extension(&mut self, answer: crate::extension::Answer) {
        self.extended = true;
        let (effect, reason) = match answer.opinion {
            Opinion::Allow => (Effect::Allow, answer.reason),
            Opinion::Deny => (Effect::Deny, answer.reason),
            Opinion::RequireReview => (Effect::RequireReview, answer.reason),
            Opinion::Pass => return,
            // A guard that cannot speak has not consented.
            Opinion::Failed => (
                Effect::Deny,
                format!("the extension failed: {}", answer.reason),
            ),
        };
        let label = Label {
            origin: Origin::Extension,
            name: answer.extension,
            reason: reason.chars().take(500).collect(),
            line: 0,
        };
        self.say(Layer::Extensions, Arc::new(label), effect);
    }
}

/// Gives decisions their ids: the time of the request and 80 bits that do not
/// repeat. Ids name decisions and have no part in making them.
#[derive(Debug, Default)]
struct DecisionLabels {
    salt: RandomState,
    count: AtomicU64,
}

impl DecisionLabels {
    fn next(&self, now: Timestamp) -> DecisionId {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let high = u128::from(self.salt.hash_one((count, 0u8)));
        let low = u128::from(self.salt.hash_one((count, 1u8)));
        let millis = u128::from(u64::try_from(now.as_micros() / 1000).unwrap_or_default());
        let random = (high << 64 | low) & ((1 << 80) - 1);
        DecisionId::from_bits((millis & ((1 << 48) - 1)) << 80 | random)
    }
}
/// A template of the project takes the place of the user's of the same name.
fn added_templates(files: &[PolicyFile]) -> Vec<AddedTemplate> {
    let mut named = BTreeMap::new();
    for template in files.iter().flat_map(PolicyFile::templates) {
        named.insert(template.name.clone(), template.clone());
    }
    named.into_values().collect()
}
