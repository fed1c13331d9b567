//! Finds the few rules that can apply to a request among many.
//!
//! Each rule is filed once under what is rarest in it: a path prefix, a name,
//! a host, a caller. A request asks for its own keys and gets candidates; a
//! rule that could speak is always among them, one that cannot may be too, so
//! a hash that collides costs time and never changes a decision.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::fast::RandomState;

use crate::action::{ACTIONS, Known};
use crate::glob::Glob;
use crate::host::HostPattern;
use crate::request::Field;
use crate::rule::{Condition, Rule};
use crate::subject::Facts;

type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// A rule's position in the list of rules.
pub(crate) type RuleNumber = u32;

/// All rules of an engine, filed.
#[derive(Debug)]
pub(crate) struct Index {
    hashing: RandomState,
    listed: Vec<Bucket>,
    /// By whole action, by `plugin.name`, and by `plugin` for all of them.
    plugins: HashMap<String, Bucket>,
    /// Rules that name no action.
    unnamed: Bucket,
}

/// The rules for one action.
#[derive(Debug, Default)]
struct Bucket {
    members: Vec<RuleNumber>,
    keyed: HashMap<u64, Vec<RuleNumber>>,
    /// Rules with nothing to file them under.
    always: Vec<RuleNumber>,
    /// Restricting rules that fire when the field is absent.
    absent: Vec<(Field, Vec<RuleNumber>)>,
    /// Which kinds of keys are in use, one bit each.
    kinds: u32,
    /// Which lengths of path prefixes are in use, one bit each.
    prefixes: u64,
}

/// What a rule can be filed under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prefix = 0,
    Name = 1,
    Ending = 2,
    Host = 3,
    Caller = 4,
    Tag = 5,
    Mode = 6,
    State = 7,
    Template = 8,
    Tier = 9,
    Tenant = 10,
}

#[derive(Debug, Clone, Copy)]
struct Key {
    hash: u64,
    kind: Kind,
    /// For prefixes: how many names.
    length: u8,
}

/// Prefixes longer than this are filed under their first names only.
const MAX_PREFIX: usize = 16;

impl Index {
    pub(crate) fn build(rules: &[Rule]) -> Self {
        let mut index = Self {
            hashing: RandomState::default(),
            listed: ACTIONS.iter().map(|_| Bucket::default()).collect(),
            plugins: HashMap::default(),
            unnamed: Bucket::default(),
        };
        let options: Vec<Vec<Filing>> =
            rules.iter().map(|rule| index.filings(&rule.when)).collect();
        let mut uses: HashMap<u64, u32> = HashMap::default();
        uses.reserve(2 * rules.len());
        for key in options.iter().flatten().flat_map(Filing::all_keys) {
            *uses.entry(key.hash).or_default() += 1;
        }
        for ((number, rule), filings) in (0..).zip(rules).zip(&options) {
            let best = filings.iter().map(|filing| filing.rarest(&uses));
            let best = best.min_by_key(|(cost, _, _)| *cost);
            index.file(number, rule, best.map(|(_, field, keys)| (field, keys)));
        }
        index
    }

    fn file(&mut self, number: RuleNumber, rule: &Rule, filed: Option<(Field, Vec<Key>)>) {
        let Some(actions) = &rule.when.actions else {
            self.unnamed.add(number, rule, filed.as_ref());
            return;
        };
        let mut left = actions.listed;
        while left != 0 {
            if let Some(bucket) = self.listed.get_mut(left.trailing_zeros() as usize) {
                bucket.add(number, rule, filed.as_ref());
            }
            left &= left - 1;
        }
        let groups = actions
            .plugins
            .iter()
            .map(|plugin| format!("plugin.{plugin}"));
        let all = actions.all_plugins.then(|| "plugin".to_owned());
        let names = actions.plugin_actions.iter().cloned();
        for name in names.chain(groups).chain(all) {
            let bucket = self.plugins.entry(name).or_default();
            bucket.add(number, rule, filed.as_ref());
        }
    }

    /// The numbers of all rules that could speak, ascending and once each.
    pub(crate) fn candidates(&self, facts: &Facts<'_>) -> Vec<RuleNumber> {
        let mut found = Vec::new();
        self.each_bucket(facts, |bucket| {
            bucket.collect(&self.hashing, facts, &mut found)
        });
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The numbers of all rules about the action, whatever else they ask for.
    pub(crate) fn about(&self, facts: &Facts<'_>) -> Vec<RuleNumber> {
        let mut found = Vec::new();
        self.each_bucket(facts, |bucket| found.extend_from_slice(&bucket.members));
        found.sort_unstable();
        found.dedup();
        found
    }

    fn each_bucket<'i>(&'i self, facts: &Facts<'_>, mut visit: impl FnMut(&'i Bucket)) {
        let mut visit = |bucket: Option<&'i Bucket>| {
            if let Some(bucket) = bucket.filter(|bucket| !bucket.members.is_empty()) {
                visit(bucket);
            }
        };
        visit(Some(&self.unnamed));
        match facts.action {
            Known::Listed(place) => visit(self.listed.get(usize::from(place))),
            Known::Plugin { name, plugin } => {
                visit(self.plugins.get(name));
                visit(self.plugins.get(format!("plugin.{plugin}").as_str()));
                visit(self.plugins.get("plugin"));
            }
        }
    }

    /// The ways in which a condition can be filed.
    fn filings(&self, when: &Condition) -> Vec<Filing> {
        let mut filings = Vec::new();
        if let Some(path) = &when.path {
            let globs = path.include().iter();
            let choices: Vec<Vec<Key>> = globs.map(|glob| self.glob_keys(glob)).collect();
            if choices.iter().all(|keys| !keys.is_empty()) {
                let field = Field::Path;
                filings.push(Filing { field, choices });
            }
        }
        let hosts = values(when.host.as_ref(), HostPattern::name);
        let callers = values(when.caller.as_ref(), String::as_str);
        let tags = values(when.caller_tag.as_ref(), String::as_str);
        let modes = values(when.mode.as_ref(), |word| word.as_str());
        let states = values(when.state.as_ref(), |word| word.as_str());
        let templates = values(when.template.as_ref(), String::as_str);
        let tiers = values(when.tier.as_ref(), |word| word.as_str());
        let tenants = values(when.tenant.as_ref(), String::as_str);
        for (field, kind, values) in [
            (Field::Host, Kind::Host, hosts),
            (Field::Caller, Kind::Caller, callers),
            (Field::CallerTag, Kind::Tag, tags),
            (Field::Mode, Kind::Mode, modes),
            (Field::State, Kind::State, states),
            (Field::Template, Kind::Template, templates),
            (Field::Tier, Kind::Tier, tiers),
            (Field::Tenant, Kind::Tenant, tenants),
        ] {
            if let Some(values) = values {
                let keys = values.into_iter().map(|value| vec![self.key(kind, value)]);
                let choices = keys.collect();
                filings.push(Filing { field, choices });
            }
        }
        filings
    }

    /// The keys of which every path that the glob matches has each one.
    fn glob_keys(&self, glob: &Glob) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut prefix = glob.literal_prefix();
        prefix.truncate(MAX_PREFIX);
        if let Ok(length) = u8::try_from(prefix.len())
            && length > 0
        {
            let hash = hash_prefix(&self.hashing, glob.root(), &prefix);
            keys.push(Key {
                hash,
                kind: Kind::Prefix,
                length,
            });
        }
        keys.extend(glob.literals().map(|name| self.key(Kind::Name, name)));
        keys.extend(glob.endings().map(|ending| self.key(Kind::Ending, ending)));
        keys
    }

    fn key(&self, kind: Kind, value: &str) -> Key {
        Key {
            hash: hash_text(&self.hashing, kind, value),
            kind,
            length: 0,
        }
    }
}

/// One way to file a rule: for each alternative value, the keys to choose from.
#[derive(Debug)]
struct Filing {
    field: Field,
    choices: Vec<Vec<Key>>,
}

impl Filing {
    fn all_keys(&self) -> impl Iterator<Item = &Key> {
        self.choices.iter().flatten()
    }

    /// The rarest key of each alternative, and how crowded they are together.
    fn rarest(&self, uses: &HashMap<u64, u32>) -> (u64, Field, Vec<Key>) {
        let crowd = |key: &Key| uses.get(&key.hash).copied().unwrap_or_default();
        let chosen: Vec<Key> = self
            .choices
            .iter()
            .filter_map(|keys| keys.iter().min_by_key(|key| crowd(key)).copied())
            .collect();
        let cost = chosen.iter().map(|key| u64::from(crowd(key))).sum();
        (cost, self.field, chosen)
    }
}

impl Bucket {
    fn add(&mut self, number: RuleNumber, rule: &Rule, filed: Option<&(Field, Vec<Key>)>) {
        self.members.push(number);
        let Some((field, keys)) = filed else {
            self.always.push(number);
            return;
        };
        for key in keys {
            self.kinds |= 1 << key.kind as u32;
            if key.kind == Kind::Prefix {
                self.prefixes |= 1 << key.length;
            }
            self.keyed.entry(key.hash).or_default().push(number);
        }
        // A path is the one field whose absence fires nothing.
        let fires_when_absent = rule.restricts() && *field != Field::Path;
        if fires_when_absent {
            match self.absent.iter_mut().find(|(each, _)| each == field) {
                Some((_, numbers)) => numbers.push(number),
                None => self.absent.push((*field, vec![number])),
            }
        }
    }

    fn collect(&self, hashing: &RandomState, facts: &Facts<'_>, found: &mut Vec<RuleNumber>) {
        found.extend_from_slice(&self.always);
        for (field, numbers) in &self.absent {
            if facts.lacks(*field) {
                found.extend_from_slice(numbers);
            }
        }
        let mut take = |kind: Kind, value: &str| {
            if self.uses(kind)
                && let Some(numbers) = self.keyed.get(&hash_text(hashing, kind, value))
            {
                found.extend_from_slice(numbers);
            }
        };
        let request = facts.request;
        let context = &request.context;
        take(Kind::Caller, &request.principal.name);
        for tag in &request.principal.tags {
            take(Kind::Tag, tag);
        }
        for (kind, value) in [
            (Kind::Mode, context.mode.map(|word| word.as_str())),
            (Kind::State, context.state.map(|word| word.as_str())),
            (Kind::Template, context.template.as_deref()),
            (Kind::Tier, context.tier.map(|word| word.as_str())),
            (Kind::Tenant, context.tenant.as_deref()),
        ] {
            if let Some(value) = value {
                take(kind, value);
            }
        }
        if let Some(host) = facts.host {
            // A host is filed under itself and below each of its domains.
            take(Kind::Host, host);
            for (at, _) in host.match_indices('.') {
                take(Kind::Host, host.get(at + 1..).unwrap_or_default());
            }
        }
        if let Some(path) = &facts.path {
            for name in &path.names {
                take(Kind::Name, name);
                if let Some(ending) = name.rfind('.').and_then(|dot| name.get(dot..)) {
                    take(Kind::Ending, ending);
                }
            }
            self.collect_prefixes(hashing, path.root, &path.names, found);
        }
    }

    fn collect_prefixes(
        &self,
        hashing: &RandomState,
        root: &str,
        names: &[&str],
        found: &mut Vec<RuleNumber>,
    ) {
        if !self.uses(Kind::Prefix) {
            return;
        }
        for length in 1..=names.len().min(MAX_PREFIX) {
            if self.prefixes & (1 << length) == 0 {
                continue;
            }
            let hash = hash_prefix(hashing, root, names.get(..length).unwrap_or_default());
            if let Some(numbers) = self.keyed.get(&hash) {
                found.extend_from_slice(numbers);
            }
        }
    }

    fn uses(&self, kind: Kind) -> bool {
        self.kinds & (1 << kind as u32) != 0
    }
}

fn values<'c, T>(list: Option<&'c Vec<T>>, text: fn(&'c T) -> &'c str) -> Option<Vec<&'c str>> {
    list.map(|list| list.iter().map(text).collect())
}

fn hash_text(hashing: &RandomState, kind: Kind, value: &str) -> u64 {
    let mut hasher = hashing.build_hasher();
    hasher.write_u8(kind as u8);
    value.hash(&mut hasher);
    hasher.finish()
}

fn hash_prefix(hashing: &RandomState, root: &str, names: &[&str]) -> u64 {
    let mut hasher = hashing.build_hasher();
    hasher.write_u8(Kind::Prefix as u8);
    root.hash(&mut hasher);
    for name in names {
        name.hash(&mut hasher);
    }
    hasher.finish()
}
