package main

import (
	"io"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
)

// manual is what slurmbridge(8) has beyond the help.
const manual = `
# FILES

**/etc/slurmbridge/slurmbridge.yaml**
: Settings, each with its default and its meaning.

**/run/slurmbridge/gate**
: Which job is the gate, for job\_submit.lua.

**/run/slurmbridge/wake**
: A line here makes the daemon look.

**/var/lib/slurmbridge/slurmbridge.db**
: Profiles, runs and the journal (SQLite).

**/usr/share/slurmbridge/job\_submit.lua**
: Turns gpu:shared into shares and the gate. Belongs beside slurm.conf.

**/usr/share/doc/slurmbridge/examples**
: What belongs into slurm.conf and gres.conf.

# EXIT STATUS

0, 1 where something failed, 2 where command line or configuration are wrong;
**slurmbridge-doctor**(8) has its own.
`

func TestManual(t *testing.T) { mantest.Manual(t, newRoot(io.Discard, io.Discard), manual) }
