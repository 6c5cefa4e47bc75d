//! The sandbox with real bubblewrap, attacked: each attack is shown to work outside first, then what it is answered inside.
//!
//! The ids are those of the threat model, and each stands in the name of a test, which `tests/tidy` checks. `attack_all` in `tests/e2e` tries what a command can begin of them in one session of
//! the real service. T37 and T39 are about other backends than bubblewrap. Where a control cannot work on this machine, the test says so by name; without
//! bubblewrap every test fails. `HYLA_LONG_RACES=1` gives the races the length that a release asks for.
//!
//! | id | what is attacked | tests |
//! |---|---|---|
//! | T1, T2, T3, T4, T5 | secrets: environment, open files, command lines, cores, the machine's files | `secrets` |
//! | T6 | writing outside the workspace | `files` |
//! | T7, T8, T9, T36 | capabilities, mounts, namespaces, calls around the filter, root | `privileges` |
//! | T10, T11, T12 | listeners, sockets, families of sockets | `network` |
//! | T13 | the terminal of the service | `terminal` |
//! | T14 | paths that lead out by their text | `workspace::tests::a_path_is_beneath_the_workspace_or_refused_by_its_text`, `leaf::tests::an_error_has_pythons_type_name_and_states_the_fact`, `git_name::tests` in `bot/src`; the fuzz target `paths` |
//! | T15, T16 | links and races against the file tools | `file_tools`; `workspace::tests::a_race_of_renames_never_reaches_outside` |
//! | T17 | pipes, sockets, devices, sparse files, endless lines | `patch::tests::t17_odd_files_hold_no_import_up`, `workspace::tests::{pipes_sockets_and_devices_are_refused_at_once, a_sparse_file_of_ten_gigabytes_is_refused_unread}`, `leaf::tests::one_line_of_five_megabytes_is_cut`; `attack_model::no_odd_file_holds_a_tool_up` in `tests/e2e` |
//! | T18 | a poisoned repository | `patch::tests::{t18_a_poisoned_repository_in_the_workspace_runs_nothing, t18_a_replaced_dot_git_leads_nowhere}`; `hostile::t18_a_poisoned_repository_runs_nothing_on_the_host` and `attack_all` in `tests/e2e` |
//! | T19 | a poisoned remote | `checkout::tests::http::t19_a_poisoned_remote_sends_a_push_nowhere_but_to_the_forge`, `checkout::tests::fetch::no_setting_of_the_user_takes_part`; `attack_all` in `tests/e2e` |
//! | T20 | a forge that redirects | `checkout::tests::http::{a_redirect_to_another_host_is_not_followed, a_redirect_to_another_port_or_path_never_gets_the_token, t20_a_push_follows_no_redirect_with_the_token}` |
//! | T21, T23, T34 | set-id bits, links for the next set-up, marks for another job | `files`; the options of bubblewrap in `sandbox::arguments::tests` |
//! | T22 | objects shared with the mirror | `checkout::tests::provide::{t22_the_repository_in_a_workspace_is_its_own, t22_an_agent_that_destroys_its_objects_does_not_reach_the_mirror}`; `attack_all` in `tests/e2e` |
//! | T24, T25, T26, T27 | daemons, death at any moment, the thread that asked, floods | `lifecycle`; secrets and control characters in what is shown: `attack_words`, `attack_fix`, `hostile` in `tests/e2e` |
//! | T28, T29, T30, T31 | forks, memory, disk, time | `limits` beside this suite, each with a neighbour that notices nothing; `running` |
//! | T32 | a workspace made to last | `file_tools`; `hostile::a_workspace_made_to_last_is_removed` in `tests/e2e` |
//! | T33 | what cannot be imported | `patch::tests::{nested_repositories_and_special_files_are_left_out_and_look_alikes_are_barred, what_the_agent_closed_is_imported_by_an_ordinary_user_too, ten_thousand_added_files_are_within_the_import_and_refused_by_the_gate}`; the fuzz target `import` |
//! | T35, T38 | a bubblewrap that is missing, broken, a pretence, or somebody else's | `trust` |
//! | T37, T39 | the backends without namespaces: refusals, what is kept in, and what is listed as not | `lesser`; `sandbox::guarded::tests` in `bot/src`; `lesser` in `tests/e2e` |
//! | T40 | the way out of a setup command | `egress::tests`; `downloads` in `tests/e2e` |
//! | T41 | words that become options | `sandbox::arguments::tests` |
//! | T42 | what must still work | `running` |
//!
//! The same is asked of containers, with real podman, in `oci`: T1, T2, T8, T9, T12, T21, T24, T25, T29 to T31 and the probe.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test says what it leaves out")]

mod bench;
mod file_tools;
mod files;
mod lesser;
mod lifecycle;
mod network;
mod oci;
mod own_process;
mod privileges;
mod running;
mod secrets;
mod terminal;
mod trust;
