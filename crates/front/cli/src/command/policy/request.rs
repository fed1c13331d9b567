//! A request as it was typed, turned into one that can be judged.

use std::str::FromStr;
use std::sync::Arc;

use fluffy_base::id::SandboxId;
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::word::{Mode, Tier, UnknownWord};
use fluffy_policy::{Context, Principal, PrincipalKind, Request};
use fluffy_report::{ExitCode, Report};

use crate::args::{KindArg, RequestArgs};
use crate::failure::Failure;

/// The request that the arguments describe.
pub(crate) fn build(args: &RequestArgs) -> Result<Request, Failure> {
    let everything = || vec!["*".to_owned()];
    let declared = if args.grants.is_empty() {
        everything()
    } else {
        args.grants.clone()
    };
    let grant = Grant::build(&GrantLists {
        capabilities: declared,
        deny_capabilities: Vec::new(),
        workspace: everything(),
        user: everything(),
    })
    .map_err(|error| {
        let fix = "patterns look like `fs.write./src/*`, `net.connect.*` or `*`";
        Failure::of(ExitCode::Usage, &error, fix)
    })?;
    let mut principal = Principal::new(kind(args.kind), args.name.clone(), Arc::new(grant));
    principal.tags = args.tags.iter().cloned().collect();
    principal.sandbox = args.sandbox;
    let context = Context {
        mode: word("--mode", args.mode.as_deref())?,
        state: word("--state", args.state.as_deref())?,
        template: args.template.clone(),
        tier: word("--tier", args.tier.as_deref())?,
        tenant: args.tenant.clone(),
        size: args.size.map(|size| size.0),
        lines: args.lines,
        ..Context::default()
    };
    let resource = Some(args.resource.clone()).filter(|resource| !resource.is_empty());
    Ok(Request {
        principal,
        action: args.action.clone(),
        resource,
        context,
    })
}

/// Fills in what an agent's call ordinarily has; says what was assumed.
pub(crate) fn assume(request: &mut Request) -> Vec<&'static str> {
    let mut assumed = Vec::new();
    if request.principal.kind != PrincipalKind::Agent {
        return assumed;
    }
    let (principal, context) = (&mut request.principal, &mut request.context);
    let mut fill = |is_missing: bool, what: &'static str| {
        if is_missing {
            assumed.push(what);
        }
    };
    fill(principal.sandbox.is_none(), "a sandbox");
    principal.sandbox.get_or_insert(SandboxId::from_bits(0));
    fill(context.template.is_none(), "template code-executor");
    context
        .template
        .get_or_insert_with(|| "code-executor".to_owned());
    fill(context.tier.is_none(), "tier process");
    context.tier.get_or_insert(Tier::Process);
    fill(context.mode.is_none(), "mode strict");
    context.mode.get_or_insert(Mode::Strict);
    fill(context.size.is_none(), "size 0");
    context.size.get_or_insert(0);
    fill(context.lines.is_none(), "lines 0");
    context.lines.get_or_insert(0);
    assumed
}

fn kind(kind: KindArg) -> PrincipalKind {
    match kind {
        KindArg::Agent => PrincipalKind::Agent,
        KindArg::User => PrincipalKind::User,
        KindArg::Plugin => PrincipalKind::Plugin,
        KindArg::Service => PrincipalKind::Service,
        KindArg::Node => PrincipalKind::Node,
    }
}

/// One of the policy's own words, such as a mode.
fn word<T: FromStr<Err = UnknownWord>>(
    flag: &str,
    text: Option<&str>,
) -> Result<Option<T>, Failure> {
    text.map(str::parse)
        .transpose()
        .map_err(|error: UnknownWord| {
            Report::from_error(ExitCode::Usage, &error)
                .fix(format!("`{flag}` takes one of {}", error.words.join(", ")))
                .into()
        })
}
