package dqn

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// ErrCheckpoint marks a checkpoint that can't be used. The message names the file, what
// is wrong and what to do.
var ErrCheckpoint = errors.New("unusable checkpoint")

const (
	checkpointFormat  = "slurmbridge-dqn"
	checkpointVersion = 1
	// mostHidden bounds what a file can make the program allocate.
	mostHidden = 4096
)

// Checkpoint is a trained network in a file.
type Checkpoint struct {
	Format  string `json:"format"`  // "slurmbridge-dqn"
	Version int    `json:"version"` // of this form
	// M is the window that the network was trained with.
	M int `json:"m"`
	// Objective is what it was trained for.
	Objective policy.Objective `json:"objective"`
	Hidden    int              `json:"hidden"` // units per layer
	// ContextLen and ComboLen are the inputs; Features is their encoder.Version.
	ContextLen int `json:"context_len"`
	ComboLen   int `json:"combo_len"`
	Features   int `json:"features"`
	// Kappa and Shown are κ and how many combinations are described.
	Kappa float64 `json:"kappa"`
	Shown int     `json:"shown"`

	// Theta are blocks as in Scorer.Params, numbers of float64, whose bits are written as 8 bytes, little endian: exact,
	// and easy to read in any language.
	Theta   [][]byte `json:"theta"`
	SHA256  string   `json:"sha256"` // of Theta, in order; hex
	Trained Trained  `json:"trained"`
}

// Trained is where a network comes from.
type Trained struct {
	Seed      uint64  `json:"seed"`
	Rounds    int     `json:"rounds"` // done
	Scenario  string  `json:"scenario"`
	Check     float64 `json:"check"`      // best validation: as RoundStats.Check
	BestRound int     `json:"best_round"` // its round; 0 = before learning
	CreatedBy string  `json:"created_by"` // program and version
}

// FromTrainer returns what t has trained as a checkpoint. scenario names what it was
// trained on, createdBy the program. It fails where the network's numbers aren't finite.
func FromTrainer(t *Trainer, scenario, createdBy string) (*Checkpoint, error) {
	o := t.Options.orDefaults()
	c := &Checkpoint{
		Format: checkpointFormat, Version: checkpointVersion, M: o.M, Objective: t.Net.Objective(), Features: encoder.Version,
		Trained: Trained{
			Seed: o.Seed, Rounds: len(t.Curve), Scenario: scenario, Check: t.Best, BestRound: t.BestRound,
			CreatedBy: createdBy,
		},
	}
	c.Hidden, c.ContextLen, c.ComboLen = t.Net.value.Sizes[1], encoder.ContextLen, encoder.ComboLen
	c.Kappa, c.Shown = t.Net.kappa, t.Net.Enc.Max
	c.Theta = encoded(snapshot(t.Net)...)
	c.SHA256 = c.sum()
	if what := c.wrong(); what != "" {
		return nil, fmt.Errorf("checkpoint: what was trained can't be kept: %s", what)
	}
	return c, nil
}

// lens returns the number of parameters of each of the network's blocks. Hidden must be valid.
func (c *Checkpoint) lens() []int {
	h := c.Hidden
	in := encoder.ContextLen + encoder.ComboLen
	return []int{encoder.ContextLen*h + h + h + 1, in*h + h + h*h + h + h + 1}
}

// again is the advice for a checkpoint that can't be repaired.
const again = "train it again"

// wrong returns what keeps the checkpoint from being used and what to do about it; ""
// if nothing does.
func (c *Checkpoint) wrong() string {
	switch {
	case c.Format != checkpointFormat:
		return fmt.Sprintf("its format is %q, not %q; name a file that `slurmbridge train` wrote", c.Format, checkpointFormat)
	case c.Version > checkpointVersion:
		return fmt.Sprintf("it is of version %d, this program reads up to %d; install the slurmbridge that wrote it (%q) "+
			"or train it again", c.Version, checkpointVersion, c.Trained.CreatedBy)
	}
	what := c.wrongHead()
	if what == "" { // then its sizes are bounded
		what = c.wrongNumbers()
	}
	if what != "" {
		what += "; " + again
	}
	return what
}

func (c *Checkpoint) wrongHead() string {
	switch t := c.Trained; {
	case c.Version < 1:
		return fmt.Sprintf("its version is %d", c.Version)
	case c.Features != encoder.Version:
		return fmt.Sprintf("it was trained on feature set %d, this program has %d", c.Features, encoder.Version)
	case c.Objective != policy.Turnaround && c.Objective != policy.Makespan:
		return fmt.Sprintf("its objective is %q", c.Objective)
	case c.M < 1 || c.M > rlcore.MaxWindow:
		return fmt.Sprintf("m is %d, not 1 to %d", c.M, rlcore.MaxWindow)
	case c.Hidden < 1 || c.Hidden > mostHidden:
		return fmt.Sprintf("hidden is %d, not 1 to %d", c.Hidden, mostHidden)
	case c.ContextLen != encoder.ContextLen || c.ComboLen != encoder.ComboLen:
		return fmt.Sprintf("it takes %d + %d figures, this program has %d + %d", c.ContextLen, c.ComboLen, encoder.ContextLen,
			encoder.ComboLen)
	case !(c.Kappa >= 0 && c.Kappa <= 1e6):
		return fmt.Sprintf("kappa is %v", c.Kappa)
	case c.Shown < 0:
		return fmt.Sprintf("shown is %d", c.Shown)
	case t.Rounds < 0 || t.BestRound < 0 || t.BestRound > t.Rounds || !(t.Check >= 0):
		return fmt.Sprintf("it says that it is the best of round %d of %d, with %v", t.BestRound, t.Rounds, t.Check)
	}
	return ""
}

func (c *Checkpoint) wrongNumbers() string {
	lens := c.lens()
	if len(c.Theta) != len(lens) {
		return fmt.Sprintf("theta has %d blocks, not %d", len(c.Theta), len(lens))
	}
	for i := range c.Theta {
		if len(c.Theta[i]) != 8*lens[i] {
			return fmt.Sprintf("theta[%d] has %d bytes, the network %d numbers of 8", i, len(c.Theta[i]), lens[i])
		}
	}
	if got := c.sum(); c.SHA256 != got {
		return fmt.Sprintf("its numbers' SHA-256 is %.12s…, not %.12s… as it says: the file was damaged; copy it again or "+
			"replace it", got, c.SHA256)
	}
	for i := range c.Theta {
		for k := range lens[i] {
			if v := number(c.Theta[i], k); math.IsNaN(v) || math.Abs(v) > math.MaxFloat32 {
				return fmt.Sprintf("theta[%d][%d] is %v: that training failed, with too high a rate", i, k, v)
			}
		}
	}
	return ""
}

// Network rebuilds the network, which observes with p. Errors wrap ErrCheckpoint.
func (c *Checkpoint) Network(p rlcore.Predictor) (*Scorer, error) {
	if what := c.wrong(); what != "" {
		return nil, fmt.Errorf("%w: %s", ErrCheckpoint, what)
	}
	s := NewScorer(c.Objective, c.Hidden, p, rand.New(rand.NewPCG(0, 0))) // what it draws is overwritten
	s.kappa, s.Enc.Max = c.Kappa, c.Shown
	restore(s, decoded(c.Theta))
	return s, nil
}
