//! Policy: our indexed engine beside Cedar and regorus, with the same rules.
//!
//! Each peer in its best documented form: Cedar with the action in the scope
//! and prepared entities, regorus with a compiled entry point over rules kept
//! as data under their action. Half of the rules name the action that is asked
//! for. All three are checked to agree before anything is timed.

use std::hint::black_box;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cedar_policy::{
    Authorizer, Context as CedarContext, Entities, EntityUid, PolicySet, Request as CedarRequest,
};
use fluffy_base::Timestamp;
use fluffy_base::id::SandboxId;
use fluffy_policy::capability::{Capability, Pattern};
use fluffy_policy::extension::NoExtensions;
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::token::{Evaluation, Presented, Terms, TokenVault};
use fluffy_policy::{
    Context, Engine, Principal, PrincipalKind, ProcessIdentity, Request, Sources, Verdict,
};
use regorus::Value;

use crate::figure::{Bar, Figure, Samples, Show, alternate, calibrate, per_operation};

const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(20);

/// All figures of the policy engine.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for rules in [10, 100, 1_000, 10_000] {
        beside_peers(rules, &mut figures)?;
    }
    figures.push(token_path()?);
    figures.push(capability_match()?);
    figures.push(worst_pattern()?);
    figures.push(load_rules()?);
    Ok(figures)
}

/// The actions of the rules: half of them `fs.write`, the rest spread out.
fn action_of(rule: usize) -> &'static str {
    const OTHERS: [&str; 4] = ["fs.read", "fs.list", "search.grep", "fs.remove"];
    if rule.is_multiple_of(2) {
        "fs.write"
    } else {
        OTHERS
            .get(rule / 2 % OTHERS.len())
            .copied()
            .unwrap_or("fs.read")
    }
}

fn our_rules(count: usize) -> String {
    let mut text = String::from("version: 1\ncapabilities:\n");
    for rule in 0..count {
        let action = action_of(rule);
        text.push_str(&format!(
            "  - {{ name: r{rule}, match: {{ action: {action}, path_glob: [\"/mod{rule}/**\"] }}, do: allow }}\n"
        ));
    }
    text
}

pub(crate) fn request(action: &str, path: &str) -> Result<Request> {
    let all = vec!["*".to_owned()];
    let grant = Grant::build(&GrantLists {
        capabilities: all.clone(),
        deny_capabilities: Vec::new(),
        workspace: all.clone(),
        user: all,
    })?;
    let mut principal = Principal::new(PrincipalKind::Agent, "agent", Arc::new(grant));
    principal.sandbox = Some(SandboxId::from_bits(1));
    principal.process = Some(ProcessIdentity { pid: 7, started: 7 });
    Ok(Request {
        principal,
        action: action.to_owned(),
        resource: Some(path.to_owned()),
        context: Context::default(),
    })
}

fn engine(rules: &str) -> Result<Engine> {
    Ok(Engine::load(
        &Sources {
            project: Some(rules),
            ..Sources::default()
        },
        1,
    )?)
}

/// Three questions: the first rule's, the last one's, and nobody's.
fn questions(count: usize) -> Vec<String> {
    let last = (count - 1) / 2 * 2;
    vec![
        "/mod0/src/lib.rs".into(),
        format!("/mod{last}/src/lib.rs"),
        "/elsewhere/lib.rs".into(),
    ]
}

fn beside_peers(count: usize, figures: &mut Vec<Figure>) -> Result<()> {
    let ours = Ours::new(count)?;
    let cedar = Cedar::new(count)?;
    let rego = Rego::new(count)?;
    for index in 0..ours.requests.len() {
        let answer = ours.ask(index);
        if cedar.ask(index) != answer || rego.ask(index)? != answer {
            bail!("the engines disagree about question {index} with {count} rules");
        }
    }
    let mut turn = 0;
    let mut next = move |length: usize| {
        turn = (turn + 1) % length;
        turn
    };
    let length = ours.requests.len();
    let calls = calibrate(ROUND, || _ = black_box(ours.ask(next(length))));
    let cedar_calls = calibrate(ROUND, || _ = black_box(cedar.ask(next(length))));
    let rego_calls = calibrate(ROUND, || _ = black_box(rego.ask(next(length))));
    let (mut mine, mut cedars, mut regos) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        mine.push(per_operation(calls, || {
            _ = black_box(ours.ask(next(length)))
        }));
        cedars.push(per_operation(cedar_calls, || {
            _ = black_box(cedar.ask(next(length)))
        }));
        regos.push(per_operation(rego_calls, || {
            _ = black_box(rego.ask(next(length)))
        }));
    }
    let bar = match count {
        10 => Bar::Under(2e-6),
        10_000 => Bar::Under(10e-6),
        _ => Bar::Inform,
    };
    let beside = match count {
        1_000 => Bar::TimesReference(50.0),
        10_000 => Bar::TimesReference(1_000.0),
        _ => Bar::Inform,
    };
    let mine = Samples::new(mine, Show::Time);
    let what = format!("decide, {count} rules");
    figures.push(Figure {
        what: what.clone(),
        ours: mine.clone(),
        reference: None,
        bar,
    });
    for (name, times) in [("cedar-policy", cedars), ("regorus", regos)] {
        let reference = Some((name.to_owned(), Samples::new(times, Show::Time)));
        figures.push(Figure {
            what: what.clone(),
            ours: mine.clone(),
            reference,
            bar: beside,
        });
    }
    Ok(())
}

struct Ours {
    engine: Engine,
    requests: Vec<Request>,
    now: Timestamp,
}

impl Ours {
    fn new(count: usize) -> Result<Self> {
        let requests = questions(count)
            .into_iter()
            .map(|path| request("fs.write", &path));
        Ok(Self {
            engine: engine(&our_rules(count))?,
            requests: requests.collect::<Result<_>>()?,
            now: Timestamp::from_micros(1_700_000_000_000_000),
        })
    }

    fn ask(&self, index: usize) -> bool {
        self.requests.get(index).is_some_and(|request| {
            self.engine
                .evaluate(request, self.now, &NoExtensions)
                .verdict()
                == Verdict::Allow
        })
    }
}

struct Cedar {
    authorizer: Authorizer,
    policies: PolicySet,
    entities: Entities,
    requests: Vec<CedarRequest>,
}

impl Cedar {
    fn new(count: usize) -> Result<Self> {
        let mut text = String::new();
        for rule in 0..count {
            let action = action_of(rule);
            text.push_str(&format!(
                "permit(principal, action == Action::\"{action}\", resource) \
                 when {{ resource.path like \"/mod{rule}/*\" }};\n"
            ));
        }
        let entities: Vec<_> = questions(count)
            .iter()
            .map(|path| {
                serde_json::json!({
                    "uid": {"type": "File", "id": path}, "attrs": {"path": path}, "parents": []
                })
            })
            .collect();
        let requests = questions(count).into_iter().map(|path| {
            let uid = |kind: &str, id: &str| -> Result<EntityUid> {
                Ok(EntityUid::from_str(&format!("{kind}::\"{id}\""))?)
            };
            Ok(CedarRequest::new(
                uid("Agent", "agent")?,
                uid("Action", "fs.write")?,
                uid("File", &path)?,
                CedarContext::empty(),
                None,
            )?)
        });
        Ok(Self {
            authorizer: Authorizer::new(),
            policies: text.parse()?,
            entities: Entities::from_json_value(entities.into(), None)?,
            requests: requests.collect::<Result<_>>()?,
        })
    }

    fn ask(&self, index: usize) -> bool {
        self.requests.get(index).is_some_and(|request| {
            let answer = self
                .authorizer
                .is_authorized(request, &self.policies, &self.entities);
            answer.decision() == cedar_policy::Decision::Allow
        })
    }
}

struct Rego {
    policy: regorus::CompiledPolicy,
    inputs: Vec<Value>,
}

impl Rego {
    fn new(count: usize) -> Result<Self> {
        let mut data = serde_json::Map::new();
        for rule in 0..count {
            let rules = data
                .entry(action_of(rule))
                .or_insert_with(|| serde_json::json!([]));
            let rules = rules.as_array_mut().context("a list was just inserted")?;
            rules.push(format!("/mod{rule}/").into());
        }
        let policy = "package gate\nimport rego.v1\ndefault allow := false\n\
             allow if { some prefix in data.rules[input.action]; startswith(input.path, prefix) }\n";
        let mut engine = regorus::Engine::new();
        engine.add_policy("gate.rego".into(), policy.into())?;
        engine.add_data(Value::from_json_str(
            &serde_json::json!({"rules": data}).to_string(),
        )?)?;
        let policy = engine.compile_with_entrypoint(&"data.gate.allow".into())?;
        let inputs = questions(count).into_iter().map(|path| {
            let input = serde_json::json!({"action": "fs.write", "path": path});
            Value::from_json_str(&input.to_string())
        });
        Ok(Self {
            policy,
            inputs: inputs.collect::<Result<_>>()?,
        })
    }

    fn ask(&self, index: usize) -> Result<bool> {
        let input = self
            .inputs
            .get(index)
            .context("a question that was prepared")?;
        let answer = self.policy.eval_with_input(input.clone())?;
        Ok(answer == Value::from(true))
    }
}

/// A presented token, used over and over as a burst of calls does.
fn token_path() -> Result<Figure> {
    let engine = engine(&our_rules(1_000))?;
    let request = request("fs.write", "/mod0/src/lib.rs")?;
    let vault = TokenVault::new([7u8; 32].into());
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let evaluation = Evaluation {
        engine: &engine,
        request: &request,
        now,
        extensions: &NoExtensions,
    };
    let terms = Terms {
        max_ops: u32::MAX,
        ..Terms::default()
    };
    let token = vault.issue(&evaluation, &terms)?.token;
    let mut counter = 0;
    let mut ask = || {
        counter += 1;
        let presented = Presented {
            token: &token,
            counter,
        };
        let decision = engine.evaluate_with_token(&request, &presented, &vault, now, &NoExtensions);
        black_box(decision.verdict())
    };
    if ask() != Verdict::Allow {
        bail!("the token is not accepted");
    }
    let calls = calibrate(ROUND, || _ = ask());
    let times = (0..ROUNDS)
        .map(|_| per_operation(calls, || _ = ask()))
        .collect();
    let ours = Samples::new(times, Show::Time);
    let what = "decide with a token, 1000 rules".to_owned();
    Ok(Figure {
        what,
        ours,
        reference: None,
        bar: Bar::Under(1e-6),
    })
}

fn capability_match() -> Result<Figure> {
    let pattern = Pattern::parse("filesystem.read./data/*")?;
    let capability = Capability::parse("filesystem.read./data/plugins/foo.txt")?;
    let mut test = || _ = black_box(black_box(&pattern).matches(black_box(&capability)));
    let calls = calibrate(ROUND, &mut test);
    let times = (0..ROUNDS)
        .map(|_| per_operation(calls, &mut test))
        .collect();
    let ours = Samples::new(times, Show::Time);
    let what = "match one capability, ordinary pattern".to_owned();
    Ok(Figure {
        what,
        ours,
        reference: None,
        bar: Bar::Under(200e-9),
    })
}

/// The worst pattern of legal length against the worst string.
fn worst_pattern() -> Result<Figure> {
    // Both ends fit, and only the middle shows that it does not match.
    let pattern = Pattern::parse(&format!("a./{}b{}", "*a".repeat(250), "*a".repeat(250)))?;
    let capability = Capability::parse(format!("a./{}", "a".repeat(1_020)))?;
    let mut test = || _ = black_box(black_box(&pattern).matches(black_box(&capability)));
    let calls = calibrate(ROUND, &mut test);
    let times = (0..ROUNDS)
        .map(|_| per_operation(calls, &mut test))
        .collect();
    let ours = Samples::new(times, Show::Time);
    let what = "match one capability, worst legal pattern".to_owned();
    Ok(Figure {
        what,
        ours,
        reference: None,
        bar: Bar::Under(1e-3),
    })
}

fn load_rules() -> Result<Figure> {
    let text = our_rules(10_000);
    let cedar_text: String = (0..10_000)
        .map(|rule| {
            format!(
                "permit(principal, action == Action::\"{}\", resource) \
                 when {{ resource.path like \"/mod{rule}/*\" }};\n",
                action_of(rule)
            )
        })
        .collect();
    let (ours, cedar) = alternate(
        5,
        1,
        || drop(black_box(engine(&text))),
        || drop(black_box(cedar_text.parse::<PolicySet>())),
    );
    let reference = Some(("cedar-policy".to_owned(), Samples::new(cedar, Show::Time)));
    let what = "load 10000 rules".to_owned();
    Ok(Figure {
        what,
        ours: Samples::new(ours, Show::Time),
        reference,
        bar: Bar::Under(0.1),
    })
}
