//! What is wrong with a manifest: a code, a field, a place, and a way out.
//!
//! Codes are public and never change their meaning. Holds no rule itself; the
//! readers raise these. Next: `reader`.

use std::fmt;

/// Defines codes with their spelling.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The code of a problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The code as it is written in answers.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    /// Scaling by load does not exist yet.
    AutoscaleUnsupported = "E_AUTOSCALE_UNSUPPORTED",
    /// Processor time out of bounds or between steps.
    CpuRange = "E_CPU_RANGE",
    /// Scratch disk out of bounds.
    DiskRange = "E_DISK_RANGE",
    /// Not one of the words that exist.
    Enum = "E_ENUM",
    /// A health check without a path, or with a wrong one.
    HealthPath = "E_HEALTH_PATH",
    /// A health check of a port that is not declared.
    HealthPort = "E_HEALTH_PORT",
    /// A health check that takes longer than its interval.
    HealthTiming = "E_HEALTH_TIMING",
    /// Not a reference to an image.
    ImageRef = "E_IMAGE_REF",
    /// Too long, or empty.
    Length = "E_LENGTH",
    /// Memory out of bounds.
    MemoryRange = "E_MEMORY_RANGE",
    /// Two mounts at one path, or of one volume.
    MountDuplicate = "E_MOUNT_DUPLICATE",
    /// Not an absolute, plain path.
    MountPath = "E_MOUNT_PATH",
    /// A path that belongs to the platform.
    MountReserved = "E_MOUNT_RESERVED",
    /// A volume that is not declared.
    MountUnknownVolume = "E_MOUNT_UNKNOWN_VOLUME",
    /// Not a name.
    Name = "E_NAME",
    /// There is no process, or there are too many.
    NoProcess = "E_NO_PROCESS",
    /// A field that an env cannot override.
    OverrideField = "E_OVERRIDE_FIELD",
    /// Not an absolute path, or not a user.
    Path = "E_PATH",
    /// Two ports of one number or name.
    PortDuplicate = "E_PORT_DUPLICATE",
    /// Not TCP.
    PortProtocol = "E_PORT_PROTOCOL",
    /// Not a port, or too many.
    PortRange = "E_PORT_RANGE",
    /// A number out of bounds.
    Range = "E_RANGE",
    /// A count of instances out of bounds.
    ReplicaRange = "E_REPLICA_RANGE",
    /// A field is missing.
    Required = "E_REQUIRED",
    /// A restart policy that cannot be.
    Restart = "E_RESTART",
    /// Bounds of scaling that contradict each other.
    ScaleBounds = "E_SCALE_BOUNDS",
    /// Another version of the format.
    SchemaVersion = "E_SCHEMA_VERSION",
    /// The path of secrets is fixed.
    SecretPathFixed = "E_SECRET_PATH_FIXED",
    /// A strategy that does not exist yet.
    StrategyUnsupported = "E_STRATEGY_UNSUPPORTED",
    /// Not TOML.
    TomlSyntax = "E_TOML_SYNTAX",
    /// Another kind of value.
    Type = "E_TYPE",
    /// A size without a unit that exists.
    Unit = "E_UNIT",
    /// A field that does not exist.
    UnknownField = "E_UNKNOWN_FIELD",
    /// Not a name of a variable.
    VarKey = "E_VAR_KEY",
    /// Too many variables, or too much in them.
    VarLimit = "E_VAR_LIMIT",
    /// A value that is no text.
    VarValue = "E_VAR_VALUE",
    /// Two volumes of one name, or too many.
    VolumeDuplicate = "E_VOLUME_DUPLICATE",
    /// Another file system than ext4.
    VolumeFilesystem = "E_VOLUME_FILESYSTEM",
    /// More than one instance with a volume.
    VolumeReplicaLimit = "E_VOLUME_REPLICA_LIMIT",
    /// One volume in two processes.
    VolumeShared = "E_VOLUME_SHARED",
    /// The size of a volume out of bounds.
    VolumeSize = "E_VOLUME_SIZE",
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What kind of thing.
    pub code: Code,
    /// The field, dotted; empty for the whole text.
    pub field: String,
    /// What is wrong, in words.
    pub message: String,
    /// What helps, if that is known.
    pub fix: Option<String>,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {} [{}]",
            self.line, self.column, self.message, self.code
        )
    }
}
