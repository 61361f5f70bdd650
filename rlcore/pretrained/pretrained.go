// Package pretrained holds the network that decides where a site has trained none
// of its own. It was made by
//
//	slurmbridge train --workload general --rounds 600 --seed 1 --out rlcore/pretrained/dqn.json
package pretrained

import (
	"bytes"
	_ "embed"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
)

//go:embed dqn.json
var file []byte

// Checkpoint returns the network that is built in.
func Checkpoint() (*dqn.Checkpoint, error) {
	return dqn.Read(bytes.NewReader(file), "the built-in network")
}
