package pretrained

import (
	"image/color"
	"path/filepath"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
)

// Name is what the policy is called that decides by a trained network.
const Name = "dqn"

// BuiltIn is what the network in the program is called.
const BuiltIn = "built in"

var _ = rlcore.RegisterPolicy(rlcore.PolicySpec{
	Name: Name, About: "a network that has learned which combinations pay; see the setting model", Rank: 100,
	Colour: color.RGBA{213, 94, 0, 255}, Live: true, Contender: true, Network: true, Learns: true,
	New: func(s rlcore.PolicySetup) (rlcore.Policy, error) {
		load, name := Checkpoint, BuiltIn
		if s.Model != "" {
			load, name = func() (*dqn.Checkpoint, error) { return dqn.Load(s.Model) }, filepath.Base(s.Model)
		}
		cp, err := load()
		if err != nil {
			return nil, err
		}
		return Policy(cp, s.Predictor, name)
	},
})

// Policy decides by a checkpoint; by is what Policy.By is given.
func Policy(cp *dqn.Checkpoint, p rlcore.Predictor, by string) (rlcore.Policy, error) {
	net, err := cp.Network(p)
	if err != nil {
		return nil, err
	}
	return dqn.NewPolicy(Name, net).By(by), nil
}
