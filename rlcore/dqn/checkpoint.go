package dqn

import (
	"cmp"
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

// The names of networks in a checkpoint.
const (
	kindScorer = "scorer"
	kindFlat   = "flat"
)

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
	Kind    string `json:"network"` // "scorer" or "flat"
	// M is the window that the network was trained with. A flat network works with no
	// other.
	M int `json:"m"`
	// Objective is what it was trained for.
	Objective policy.Objective `json:"objective"`
	Hidden    int              `json:"hidden"` // units per layer
	// ContextLen and ComboLen are a scorer's inputs, Pixels a flat network's; Features
	// is their encoder.Version.
	ContextLen int `json:"context_len,omitempty"`
	ComboLen   int `json:"combo_len,omitempty"`
	Pixels     int `json:"pixels,omitempty"`
	Features   int `json:"features"`
	// Kappa and Shown are a scorer's κ and how many combinations it describes.
	Kappa float64 `json:"kappa,omitempty"`
	Shown int     `json:"shown,omitempty"`

	Theta   []Floats `json:"theta"`  // blocks as in Network.Params
	SHA256  string   `json:"sha256"` // of Theta's and Optimiser's numbers, in order; hex
	Trained Trained  `json:"trained"`
	// Optimiser has numbers in files of earlier releases, which only the sum covers.
	Optimiser *struct {
		Last []Floats `json:"last"`
		M    []Floats `json:"m"`
		V    []Floats `json:"v"`
	} `json:"optimiser,omitempty"`
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
// trained on, createdBy the program. It fails where the network has no form in a file
// or its numbers aren't finite.
func FromTrainer(t *Trainer, scenario, createdBy string) (*Checkpoint, error) {
	o := t.Options.orDefaults()
	c := &Checkpoint{
		Format: checkpointFormat, Version: checkpointVersion, M: o.M, Objective: t.Net.Objective(), Features: encoder.Version,
		Trained: Trained{
			Seed: o.Seed, Rounds: max(t.Start, 0), Scenario: scenario, Check: t.Best, BestRound: t.BestRound, CreatedBy: createdBy,
		},
	}
	if n := len(t.Curve); n > 0 {
		c.Trained.Rounds = t.Curve[n-1].Round
	}
	switch n := t.Net.(type) {
	case *Scorer:
		c.Kind, c.Hidden = n.Name(), n.value.Sizes[1]
		c.ContextLen, c.ComboLen = encoder.ContextLen, encoder.ComboLen
		c.Kappa, c.Shown = n.kappa, n.Enc.Max
	case *Flat:
		c.Kind, c.Hidden, c.M, c.Pixels = n.Name(), n.net.Hidden, n.Enc.M, n.Enc.Len()
	default:
		return nil, fmt.Errorf("checkpoint: a network of type %T has no form in a file", t.Net)
	}
	c.Theta = floats(snapshot(t.Net)...)
	c.SHA256 = c.sum()
	if what := c.wrong(); what != "" {
		return nil, fmt.Errorf("checkpoint: what was trained can't be kept: %s", what)
	}
	return c, nil
}

// pixels is the number of a flat network's inputs for windows of m jobs.
func pixels(m int) int { return (&encoder.Images{M: m, Virtual: true}).Len() }

// lens returns the number of parameters of each of the network's blocks. Kind, M and
// Hidden must be valid.
func (c *Checkpoint) lens() []int {
	h := c.Hidden
	if c.Kind == kindFlat {
		out := 1 + 1<<c.M
		return []int{pixels(c.M)*h + h + out*h + out}
	}
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
		return fmt.Sprintf("it is of version %d, this program reads up to %d; install the slurmbridge that wrote it (%q) or train it again", c.Version, checkpointVersion, c.Trained.CreatedBy)
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
	flat := c.Kind == kindFlat
	switch t := c.Trained; {
	case c.Version < 1:
		return fmt.Sprintf("its version is %d", c.Version)
	case c.Kind != kindScorer && !flat:
		return fmt.Sprintf("there is no network %q", c.Kind)
	case c.Features != encoder.Version:
		return fmt.Sprintf("it was trained on feature set %d, this program has %d", c.Features, encoder.Version)
	case c.Objective != policy.Turnaround && c.Objective != policy.Makespan || flat && c.Objective != policy.Makespan:
		return fmt.Sprintf("its objective is %q", c.Objective)
	case c.M < 1 || c.M > rlcore.MaxWindow:
		return fmt.Sprintf("m is %d, not 1 to %d", c.M, rlcore.MaxWindow)
	case c.Hidden < 1 || c.Hidden > mostHidden:
		return fmt.Sprintf("hidden is %d, not 1 to %d", c.Hidden, mostHidden)
	case flat && c.Pixels != pixels(c.M):
		return fmt.Sprintf("it takes %d pixels, windows of %d have %d", c.Pixels, c.M, pixels(c.M))
	case !flat && (c.ContextLen != encoder.ContextLen || c.ComboLen != encoder.ComboLen):
		return fmt.Sprintf("it takes %d + %d figures, this program has %d + %d", c.ContextLen, c.ComboLen, encoder.ContextLen, encoder.ComboLen)
	case !flat && !(c.Kappa >= 0 && c.Kappa <= 1e6):
		return fmt.Sprintf("kappa is %v", c.Kappa)
	case !flat && c.Shown < 0:
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
		if len(c.Theta[i]) != lens[i] {
			return fmt.Sprintf("theta[%d] has %d numbers, the network %d", i, len(c.Theta[i]), lens[i])
		}
	}
	if got := c.sum(); c.SHA256 != got {
		return fmt.Sprintf("its numbers' SHA-256 is %.12s…, not %.12s… as it says: the file was damaged; copy it again or replace it", got, c.SHA256)
	}
	for i := range c.Theta {
		for k, v := range c.Theta[i] {
			if math.IsNaN(v) || math.Abs(v) > math.MaxFloat32 {
				return fmt.Sprintf("theta[%d][%d] is %v: that training failed, with too high a rate", i, k, v)
			}
		}
	}
	return ""
}

// Network rebuilds the network. p predicts slowdowns for a scorer; a flat network
// needs none. Errors wrap ErrCheckpoint.
func (c *Checkpoint) Network(p rlcore.Predictor) (Network, error) {
	if what := c.wrong(); what != "" {
		return nil, fmt.Errorf("%w: %s", ErrCheckpoint, what)
	}
	var net Network
	r := rand.New(rand.NewPCG(0, 0)) // what it draws is overwritten
	if c.Kind == kindFlat {
		net = NewFlat(c.M, c.Hidden, r)
	} else {
		s := NewScorer(c.Objective, c.Hidden, p, r)
		s.kappa, s.Enc.Max = c.Kappa, c.Shown
		net = s
	}
	restore(net, plain(c.Theta))
	return net, nil
}

// Resume prepares t to continue the training: its network, which observes with p, its first round
// and the best one so far. Options.Rounds counts all rounds. A seed or window that Options leave 0
// is the checkpoint's. Errors wrap ErrCheckpoint.
func (c *Checkpoint) Resume(t *Trainer, p rlcore.Predictor) error {
	net, err := c.Network(p)
	if err != nil {
		return err
	}
	if c.Kind == kindFlat && t.Options.M != 0 && t.Options.M != c.M {
		return fmt.Errorf("%w: it is for windows of %d jobs, not %d; go on with those or train from the start", ErrCheckpoint, c.M, t.Options.M)
	}
	t.Options.Seed, t.Options.M = cmp.Or(t.Options.Seed, c.Trained.Seed), cmp.Or(t.Options.M, c.M)
	t.Net, t.Start, t.BestRound = net, c.Trained.Rounds, c.Trained.BestRound
	return nil
}
