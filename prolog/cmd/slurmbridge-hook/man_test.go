package main

import (
	"io"
	"os"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/packaging/manpage/mantest"
)

// manual is what slurmbridge-hook(8) has beyond the help.
const manual = `
# FILES

**/etc/slurmbridge/node.yaml**
: Settings of the node, each with its default and its meaning.

**/usr/lib/slurmbridge/prolog**, **epilog**, **taskprolog**
: What slurm.conf names.

**/run/slurmbridge/jobs**
: The jobs on this node.

**/run/slurmbridge/mps**
: The MPS daemon of each shared GPU: its pipe and its log.
`

func TestManual(t *testing.T) { mantest.Manual(t, newRoot(io.Discard, os.Getenv), manual) }
