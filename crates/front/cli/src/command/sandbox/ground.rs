//! What a sandbox is made on: project, template, engine, tools.
//!
//! Only looks at the machine and the arguments; makes nothing. The launcher
//! checks all of it again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fluffy_base::{ByteSize, Span};
use fluffy_contract::isolation::Tier;
use fluffy_layer::LayerKind;
use fluffy_policy::Context;
use fluffy_policy::templates::AddedTemplate;
use fluffy_report::{ExitCode, Report};
use fluffy_sandbox::plan::{Engine, Settings};
use fluffy_sandbox::probe::Tools;
use fluffy_sandbox::template::{Lifetime, Network, Profile, Template};

use crate::args::{EngineArg, RunArgs, TierArg};
use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// The caller's variables that say nothing secret and are missed inside.
const PASSED_ON: &[&str] = &["COLORTERM", "NO_COLOR", "TERM", "TZ"];

/// Where and how a command is to run.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    /// The project, seen inside at its own path.
    pub(crate) project: PathBuf,
    /// Where the command starts.
    pub(crate) directory: PathBuf,
    /// The named set of limits.
    pub(crate) template: Template,
    /// The tier that was asked for.
    pub(crate) tier: Tier,
    /// Who makes the sandbox.
    pub(crate) engine: Engine,
    /// How the layer keeps writes apart.
    pub(crate) layer: LayerKind,
    /// The only paths that may be written.
    pub(crate) writable: Vec<PathBuf>,
    /// What is set inside.
    pub(crate) environment: BTreeMap<String, String>,
    /// Read-only directories of tools.
    pub(crate) tools: Vec<PathBuf>,
    templates: Vec<Template>,
    choice: Choice,
}

/// Whose choice the engine was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// The person's: no other will do.
    Asked,
    /// Ours: the first that works on this machine.
    Free,
}

impl Ground {
    /// What these arguments ask for, here.
    pub(crate) fn survey(
        session: &Session,
        here: &Here,
        args: &RunArgs,
        added: &[AddedTemplate],
    ) -> Result<Self, Failure> {
        let directory = session.folder()?;
        let project = here
            .paths
            .project_root
            .as_deref()
            .map_or_else(|| Ok(directory.clone()), Path::canonicalize)
            .map_err(|error| failure::no_folder(&directory, &error))?;
        let mut templates = Template::all(machine_memory(), added);
        if args.trial {
            templates.extend(trial_templates());
        }
        let template = find_template(&templates, args)?;
        let (tier, engine) = tier_and_engine(args, &template)?;
        let Tools {
            roots: mut tools,
            variables: mut environment,
        } = tools(here, &project);
        if args.trial {
            let own = std::env::current_exe().map_err(|error| failure::no_program(&error))?;
            tools.push(own);
        }
        for name in PASSED_ON {
            if let Ok(value) = std::env::var(name) {
                environment.insert((*name).to_owned(), value);
            }
        }
        Ok(Self {
            writable: writable(&directory, args)?,
            project,
            directory,
            template,
            tier,
            engine,
            layer: layer_kind(engine),
            environment,
            tools,
            templates,
            choice: match (args.tier, args.engine) {
                (None | Some(TierArg::Process), None) => Choice::Free,
                _ => Choice::Asked,
            },
        })
    }

    /// What an agent's tools run on in this project.
    pub(crate) fn of_agent(
        here: &Here,
        added: &[AddedTemplate],
        engine: Engine,
        tools: Tools,
    ) -> Result<Self, Failure> {
        let root = here.paths.project_root.clone().unwrap_or_default();
        let project = root
            .canonicalize()
            .map_err(|error| failure::no_folder(&root, &error))?;
        let templates = Template::all(machine_memory(), added);
        let wanted = "code-executor";
        let template = templates.iter().find(|known| known.name == wanted);
        let template = template
            .cloned()
            .ok_or_else(|| no_template(wanted, &templates))?;
        let Tools {
            roots: mut tools,
            variables: environment,
        } = tools;
        // Changes of files are made by this program, inside.
        tools.push(std::env::current_exe().map_err(|error| failure::no_program(&error))?);
        Ok(Self {
            writable: Vec::new(),
            directory: project.clone(),
            project,
            template,
            tier: Tier::Process,
            engine,
            layer: layer_kind(engine),
            environment,
            tools,
            templates,
            choice: Choice::Asked,
        })
    }

    /// Another way to the same tier, after this one was not to be had.
    pub(crate) fn instead(&self) -> Option<Self> {
        if self.choice == Choice::Asked {
            return None;
        }
        let engine = fluffy_sandbox::probe::Report::probe().best()?;
        Some(Self {
            engine,
            // Where the native engine works, it was the overlay that did not.
            layer: LayerKind::Copy,
            choice: Choice::Asked,
            ..self.clone()
        })
    }

    /// Why this machine has no such tier, in the words of `fluffy doctor`.
    pub(crate) fn obstacle(&self) -> Option<Report> {
        if self.choice == Choice::Asked {
            return None;
        }
        let probed = fluffy_sandbox::probe::Report::probe();
        let of = |engine| probed.engines.iter().find(|tried| tried.engine == engine);
        let obstacle = of(Engine::Native)?.obstacle.as_ref()?;
        let what = format!("tier `process` is not to be had here: {}", obstacle.what);
        let mut report = Report::new(ExitCode::Failure, what)
            .code("no_sandbox")
            .why(obstacle.why.clone());
        if let Some(fix) = &obstacle.fix {
            report = report.fix(fix.clone());
        }
        if of(Engine::Reduced)?.obstacle.is_none() {
            report = report.fix("or take less: `--engine reduced` works here");
        }
        Some(report)
    }

    /// The circumstances that rules can look at.
    pub(crate) fn context(&self) -> Context {
        Context {
            template: Some(self.template.name.clone()),
            tier: Some(self.tier),
            ..Context::default()
        }
    }

    /// What the launcher is started with.
    pub(crate) fn settings(&self, here: &Here, layers: &Path) -> Settings {
        Settings {
            templates: self.templates.clone(),
            projects: vec![self.project.clone()],
            plugins: Some(plugins(here)),
            layers: layers.to_owned(),
            state: here.paths.state_dir.join("sandboxes"),
            tools: self.tools.clone(),
            engine: self.engine,
        }
    }
}

/// Where plugins are, without a link on the way: a launcher follows none.
fn plugins(here: &Here) -> PathBuf {
    let folder = here.paths.plugins_dir.clone();
    folder.canonicalize().unwrap_or(folder)
}

/// What a launcher that only starts plugins is started with.
pub(crate) fn for_plugins(
    here: &Here,
    added: &[AddedTemplate],
    engine: Engine,
    folder: &Path,
) -> Settings {
    Settings {
        templates: Template::all(machine_memory(), added),
        projects: Vec::new(),
        plugins: Some(plugins(here)),
        layers: here.paths.state_dir.join("layers"),
        state: here.paths.state_dir.join("sandboxes"),
        // Modules are run by this program.
        tools: tools(here, folder)
            .roots
            .into_iter()
            .chain(std::env::current_exe())
            .collect(),
        engine,
    }
}

fn layer_kind(engine: Engine) -> LayerKind {
    match engine {
        Engine::Native => LayerKind::Overlay,
        Engine::Bwrap | Engine::Reduced | Engine::Container => LayerKind::Copy,
    }
}

/// The templates of `sandbox selftest`: small, so that a trial is quick and a
/// guard that fails is harmless.
fn trial_templates() -> [Template; 2] {
    let limits = fluffy_attack::Limits::TRIAL;
    let small = |name: &str, network, seccomp| Template {
        name: name.to_owned(),
        least_tier: Tier::Process,
        network,
        memory: ByteSize(limits.memory),
        cpu_milli: None,
        pids: limits.pids,
        time: Lifetime::Total(Span {
            millis: limits.time_ms,
        }),
        seccomp,
        disk: ByteSize(limits.disk),
        file_size: ByteSize(limits.file_size),
        scratch: ByteSize(limits.tmpfs),
    };
    [
        small("trial", Network::Loopback, Profile::Standard),
        small("trial-net", Network::Restricted, Profile::StandardNet),
    ]
}

fn tier_and_engine(args: &RunArgs, template: &Template) -> Result<(Tier, Engine), Failure> {
    let asked = match args.tier {
        None => template.least_tier.max(Tier::Process),
        Some(TierArg::Wasm) => Tier::Wasm,
        Some(TierArg::Process) => Tier::Process,
        Some(TierArg::Container) => Tier::Container,
        Some(TierArg::Microvm) => Tier::Microvm,
    };
    let tier = asked.max(template.least_tier);
    let engine = match (tier, args.engine) {
        (Tier::Wasm | Tier::Process, None | Some(EngineArg::Native)) => Engine::Native,
        (Tier::Wasm | Tier::Process, Some(EngineArg::Bwrap)) => Engine::Bwrap,
        (Tier::Wasm | Tier::Process, Some(EngineArg::Reduced)) => Engine::Reduced,
        (Tier::Container, None) => Engine::Container,
        (Tier::Container | Tier::Microvm, Some(_)) => {
            return Err(
                Report::new(ExitCode::Usage, "`--engine` is for tier process")
                    .fix("leave it out, or use `--tier process`")
                    .into(),
            );
        }
        (Tier::Microvm, None) => {
            return Err(Report::new(
                ExitCode::Usage,
                "tier microvm is made by a node of the platform, not by this command",
            )
            .why("a virtual machine needs an image, a kernel and a node that keeps them")
            .fix("use `--tier container` or `--tier process`; `fluffy doctor` says what works")
            .into());
        }
    };
    if engine == Engine::Reduced && template.network == Network::Restricted {
        return Err(Report::new(
            ExitCode::Usage,
            "reduced isolation reaches no host, not even through the proxy",
        )
        .why("it has no network of its own that a proxy could be in")
        .fix("leave `--allow` out, or use `--engine native` or `--engine bwrap`")
        .into());
    }
    if args.image.is_some() && engine != Engine::Container {
        return Err(
            Report::new(ExitCode::Usage, "`--image` is for tier container")
                .fix("add `--tier container`, or leave the image out")
                .into(),
        );
    }
    Ok((tier, engine))
}

fn no_template(name: &str, templates: &[Template]) -> Failure {
    let names: Vec<&str> = templates.iter().map(|known| known.name.as_str()).collect();
    Report::new(ExitCode::NotFound, format!("there is no template `{name}`"))
        .fix(format!("use one of: {}", names.join(", ")))
        .into()
}

fn find_template(templates: &[Template], args: &RunArgs) -> Result<Template, Failure> {
    let name = match (&args.template, args.allow.is_empty(), args.trial) {
        (Some(name), _, _) => name.as_str(),
        (None, true, false) => "code-executor",
        (None, false, false) => "integration-test",
        (None, true, true) => "trial",
        (None, false, true) => "trial-net",
    };
    let Some(template) = templates.iter().find(|known| known.name == name) else {
        return Err(no_template(name, templates));
    };
    if !args.allow.is_empty() && template.network != Network::Restricted {
        return Err(Report::new(
            ExitCode::Usage,
            format!("template `{name}` reaches no host, so `--allow` means nothing in it"),
        )
        .fix("leave `--template` out, or use `--template integration-test`")
        .into());
    }
    if let (Some(asked), Lifetime::Total(most)) = (args.time, template.time)
        && asked.millis > most.millis
    {
        return Err(Report::new(
            ExitCode::Usage,
            format!("template `{name}` gives {most} and no more"),
        )
        .fix(
            "ask for less, or add a template to the policy: `templates: { long: { based_on: … } }`",
        )
        .into());
    }
    Ok(template.clone())
}

/// Links are resolved here, because a sandbox compares paths as they are.
fn writable(directory: &Path, args: &RunArgs) -> Result<Vec<PathBuf>, Failure> {
    let real = |path: &PathBuf| {
        directory.join(path).canonicalize().map_err(|error| {
            Report::new(
                ExitCode::NotFound,
                format!("cannot let it write to `{}`", path.display()),
            )
            .why(error.to_string())
            .fix("name a file or folder of the project that exists; make it first")
            .into()
        })
    };
    args.write.iter().map(real).collect()
}

/// Tools outside the system's own directories. What would show the project
/// writable, or our own state, is left out.
pub(crate) fn tools(here: &Here, project: &Path) -> Tools {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    let mut tools = Tools::find(&path, &home);
    tools.roots.retain(|root| {
        !root.starts_with(project)
            && !project.starts_with(root)
            && !here.paths.state_dir.starts_with(root)
    });
    tools
}

fn machine_memory() -> ByteSize {
    let info = rustix::system::sysinfo();
    #[cfg_attr(
        target_pointer_width = "64",
        expect(
            clippy::useless_conversion,
            reason = "the kernel's word is smaller elsewhere"
        )
    )]
    let total = u64::from(info.totalram);
    ByteSize(total.saturating_mul(u64::from(info.mem_unit)))
}
