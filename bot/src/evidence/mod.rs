//! The test runs that the bot makes itself, in fresh sandboxes, and the table that it shows of them.
