//! Plugins compiled from Go, built once for each state of their sources.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fluffy_base::Digest;

/// Where Debian puts the libraries.
const LIBRARIES: &str = "/usr/share/gocode";

/// Debian's Go has this message where older libraries look for it.
const EMPTY: &str = "Mgoogle/protobuf/empty.proto=github.com/golang/protobuf/ptypes/empty";

/// What is built, each from the folder of its name.
const PROGRAMS: [&str; 4] = ["chat", "double", "provider", "tool"];

/// The plugins below `dev/fixtures/plugins/go`.
#[derive(Debug)]
pub struct GoPlugins {
    programs: PathBuf,
}

impl GoPlugins {
    /// Builds them below the target folder, or finds them there.
    ///
    /// # Errors
    /// When Go, protoc or a library is missing; `cargo xtask test --only setup`
    /// installs them.
    pub fn build(target: &Path) -> Result<Self> {
        let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let proto = home.join("crates/plugin/host/proto");
        let sources = home.join("dev/fixtures/plugins/go");
        let mut files = Vec::new();
        find(&proto, &mut files)?;
        find(&sources, &mut files)?;
        let mut all = Vec::new();
        for file in &files {
            all.extend(fs::read(file)?);
        }
        let place = target.join("go-plugins");
        let programs = place.join(Digest::of(&all).to_string());
        fs::create_dir_all(&place)?;
        // Tests are processes of their own, and one of them builds.
        let lock = fs::File::create(place.join("lock"))?;
        lock.lock()?;
        if !programs.join("done").exists() {
            compile(&proto, &sources, &programs, &place.join("cache"))?;
            fs::write(programs.join("done"), "")?;
        }
        Ok(Self { programs })
    }

    /// A channel made with HashiCorp's own library: a chat over a unix socket.
    #[must_use]
    pub fn chat(&self) -> PathBuf {
        self.programs.join("chat")
    }

    /// A tool plugin made with HashiCorp's own library.
    #[must_use]
    pub fn tool(&self) -> PathBuf {
        self.programs.join("tool")
    }

    /// A provider made with HashiCorp's own library, which plays a script.
    #[must_use]
    pub fn provider(&self) -> PathBuf {
        self.programs.join("provider")
    }

    /// A double of our own, which misbehaves on request.
    #[must_use]
    pub fn double(&self) -> PathBuf {
        self.programs.join("double")
    }
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        match entry.file_type()?.is_dir() {
            true => find(&entry.path(), files)?,
            false => files.push(entry.path()),
        }
    }
    Ok(())
}

fn compile(proto: &Path, sources: &Path, programs: &Path, cache: &Path) -> Result<()> {
    let work = programs.join("src");
    fs::create_dir_all(&work)?;
    for name in PROGRAMS {
        let package = work.join("fluffydev").join(name);
        fs::create_dir_all(&package)?;
        let mut files = Vec::new();
        find(&sources.join(name), &mut files)?;
        for file in files {
            fs::copy(&file, package.join(file.file_name().unwrap_or_default()))?;
        }
    }
    let mut contracts = Vec::new();
    find(&proto.join("fluffy"), &mut contracts)?;
    for files in [contracts, vec![proto.join("go_plugin.proto")]] {
        let mut protoc = Command::new("protoc");
        protoc.arg("-I").arg(proto);
        protoc.arg(format!("--go_out=plugins=grpc,{EMPTY}:{}", work.display()));
        run(protoc.args(files))?;
    }
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-o"]).arg(programs);
    go.args(PROGRAMS.map(|name| format!("fluffydev/{name}")));
    let path = format!("{}:{LIBRARIES}", programs.display());
    let variables: [(&str, &OsStr); 5] = [
        ("CGO_ENABLED", "0".as_ref()),
        ("GO111MODULE", "off".as_ref()),
        ("GOCACHE", cache.as_os_str()),
        ("GOPATH", path.as_ref()),
        ("GOPROXY", "off".as_ref()),
    ];
    run(go.envs(variables))
}

fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| shown.clone())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{shown}` failed: {said}");
    Ok(())
}
