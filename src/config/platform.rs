//! The platform's folder for an application's data, derived from the environment.
//!
//! Called once, for the default of `store.url`; creates no folder. No crate is used, since this is three lines
//! for each platform and takes the environment as a map.

use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Debug, Clone, Copy)]
pub(super) enum Platform {
    /// Linux and the other systems that follow the XDG base directory specification.
    Xdg,
    MacOs,
    Windows,
}

impl Platform {
    /// The platform this binary was built for.
    pub(super) const CURRENT: Self = if cfg!(target_os = "macos") {
        Self::MacOs
    } else if cfg!(windows) {
        Self::Windows
    } else {
        Self::Xdg
    };

    /// The folder for Diarist's data; `None` if the environment does not say where it is.
    pub(super) fn data_folder(self, env: &BTreeMap<String, String>) -> Option<PathBuf> {
        let folder = |name: &str| {
            env.get(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let base = match self {
            // The specification says that a relative path is to be ignored.
            Self::Xdg => folder("XDG_DATA_HOME")
                .filter(|path| path.is_absolute())
                .or_else(|| folder("HOME").map(|home| home.join(".local/share"))),
            Self::MacOs => folder("HOME").map(|home| home.join("Library/Application Support")),
            Self::Windows => folder("LOCALAPPDATA"),
        };
        base.map(|base| base.join("diarist"))
    }

    /// The variable to set when [`Platform::data_folder`] found none.
    pub(super) const fn home_variable(self) -> &'static str {
        match self {
            Self::Xdg | Self::MacOs => "HOME",
            Self::Windows => "LOCALAPPDATA",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn folder(platform: Platform, env: &[(&str, &str)]) -> Option<PathBuf> {
        let env = env
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        platform.data_folder(&env)
    }

    #[test]
    fn xdg_data_home_overrides_home_unless_it_is_relative_or_empty() {
        let home = ("HOME", "/home/ada");
        let expected = Some(Path::new("/home/ada/.local/share/diarist").to_owned());
        assert_eq!(folder(Platform::Xdg, &[home]), expected);
        assert_eq!(
            folder(Platform::Xdg, &[home, ("XDG_DATA_HOME", "")]),
            expected
        );
        assert_eq!(
            folder(Platform::Xdg, &[home, ("XDG_DATA_HOME", "data")]),
            expected
        );
        assert_eq!(
            folder(Platform::Xdg, &[home, ("XDG_DATA_HOME", "/data")]),
            Some(Path::new("/data/diarist").to_owned())
        );
    }

    #[test]
    fn macos_and_windows_use_their_own_data_folder() {
        assert_eq!(
            folder(Platform::MacOs, &[("HOME", "/Users/ada")]),
            Some(Path::new("/Users/ada/Library/Application Support/diarist").to_owned())
        );
        assert_eq!(
            folder(Platform::Windows, &[("LOCALAPPDATA", "/local")]),
            Some(Path::new("/local/diarist").to_owned())
        );
    }

    #[test]
    fn a_missing_variable_gives_no_data_folder() {
        assert_eq!(folder(Platform::Xdg, &[]), None);
        assert_eq!(folder(Platform::Windows, &[("HOME", "/home/ada")]), None);
    }
}
