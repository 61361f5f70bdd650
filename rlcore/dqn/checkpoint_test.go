package dqn

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/nn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

func sameTheta(a, b *Scorer) bool {
	return slices.EqualFunc(a.Params(), b.Params(), func(x, y nn.Block) bool { return slices.Equal(x.Theta, y.Theta) })
}

func TestCheckpointRoundTrip(t *testing.T) {
	tr := trained(t, 8)
	shake(tr.Net, 4) // whatever was learned: no parameter is 0
	c := FromTrainer(tr, "mixed", "slurmbridge test")
	path := filepath.Join(t.TempDir(), "net.json")
	must.OK(t, Save(path, c))
	got := must.Get(Load(path))(t)
	want := Trained{
		Seed: 3, Rounds: 8, Scenario: "mixed", Check: tr.Best, BestRound: tr.BestRound,
		CreatedBy: "slurmbridge test",
	}
	if got.Trained != want || got.M != 4 || got.Hidden != 8 {
		t.Errorf("%+v of %d, %d", got.Trained, got.M, got.Hidden)
	}
	guard := newGuard()
	net := must.Get(got.Network(guard.Predictor))(t)
	if !sameTheta(net, tr.Net) {
		t.Errorf("other parameters came back")
	}
	w := someWindow(4)
	combos := guard.Combos(nil, w)
	a, b := make([]float64, len(combos)), make([]float64, len(combos))
	NewPolicy("dqn", tr.Net).Score(a, w, combos)
	NewPolicy("dqn", net).Score(b, w, combos)
	must.Equal(t, a, b, "scores")
	must.Equal(t, must.Get(os.Stat(path))(t).Mode(), 0o644, "mode")
}

// put sets number k of the first block.
func put(c *Checkpoint, k int, v float64) {
	binary.LittleEndian.PutUint64(c.Theta[0][8*k:], math.Float64bits(v))
}

func TestReadRefuses(t *testing.T) {
	good := FromTrainer(short(0), "mixed", "slurmbridge test")
	whole := must.Get(json.Marshal(good))(t)
	change := func(sum bool, f func(*Checkpoint)) string {
		var c Checkpoint
		must.OK(t, json.Unmarshal(whole, &c))
		f(&c)
		if sum {
			c.SHA256 = c.sum()
		}
		text := must.Get(json.Marshal(&c))(t)
		return string(text)
	}
	must.OK(t, must.Err(Read(strings.NewReader(change(true, func(*Checkpoint) {})), "good")))
	for _, x := range []struct{ name, text, want string }{
		{"empty", "", "isn't JSON, or not whole"},
		{"half", string(whole[:len(whole)/2]), "unexpected end"},
		{"more", string(whole) + "x", "isn't JSON"},
		{"csv", "job,submit_s\n1,2\n", "isn't JSON"},
		{"null", "null", `format is ""`},
		{"other JSON", `{"format":"onnx","theta":{}}`, `format is "onnx"`},
		{
			"newer", `{"format":"slurmbridge-dqn","version":2,"theta":{"a":1},"trained":{"created_by":"slurmbridge 9.1"}}`,
			`version 2, not "slurmbridge-dqn", version 1 (written by "slurmbridge 9.1")`,
		},
		{"no version", `{"format":"slurmbridge-dqn"}`, "version 0"},
		{"base64", strings.Replace(string(whole), `"theta":["`, `"theta":["*`, 1), "base64"},
		{"odd length", change(true, func(c *Checkpoint) { c.Theta[0] = c.Theta[0][3:] }), "numbers of 8"},
		{"features", change(false, func(c *Checkpoint) { c.Features++ }), "feature set"},
		{"m", change(false, func(c *Checkpoint) { c.M = 63 }), "m is 63"},
		{"hidden", change(false, func(c *Checkpoint) { c.Hidden = 1 << 30 }), "hidden is"},
		{"other hidden", change(false, func(c *Checkpoint) { c.Hidden++ }), "the network"},
		{"objective", change(false, func(c *Checkpoint) { c.Objective = "fun" }), `objective is "fun"`},
		{"kappa", change(false, func(c *Checkpoint) { c.Kappa = -1 }), "kappa"},
		{"shown", change(false, func(c *Checkpoint) { c.Shown = -1 }), "shown"},
		{"blocks", change(true, func(c *Checkpoint) { c.Theta = c.Theta[:1] }), "blocks"},
		{"a bit", change(false, func(c *Checkpoint) { c.Theta[1][3]++ }), "SHA-256"},
		{"NaN", change(true, func(c *Checkpoint) { put(c, 7, math.NaN()) }), "theta[0][7] is NaN"},
		{"too large", change(true, func(c *Checkpoint) { put(c, 7, 1e39) }), "theta[0][7] is 1e+39"},
	} {
		c, err := Read(strings.NewReader(x.text), "nets/a.json")
		if !errors.Is(err, ErrCheckpoint) || !strings.Contains(err.Error(), x.want) ||
			!strings.Contains(err.Error(), "nets/a.json") {
			t.Errorf("%s: %v (%v), want %q", x.name, err, c != nil, x.want)
		}
	}
}

func TestSaveRefusesWhatCannotBeRead(t *testing.T) {
	c := FromTrainer(short(0), "mixed", "slurmbridge test")
	path := filepath.Join(t.TempDir(), "a.json")
	must.OK(t, Save(path, c))
	before, _ := os.ReadFile(path)
	put(c, 0, math.NaN())
	must.Is(t, Save(path, c), ErrCheckpoint, "NaN isn't written")
	must.Equal(t, string(must.Get(os.ReadFile(path))(t)), string(before), "the old file")
	if _, err := Load(path + "x"); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrCheckpoint) {
		t.Errorf("a file that isn't there: %v", err)
	}
}

// FuzzRead: whatever a file holds is refused with its name, or makes a network that scores.
func FuzzRead(f *testing.F) {
	tiny := &Trainer{Options: Options{M: 1}, Net: NewScorer(policy.Turnaround, 1, nil, seeded(1))}
	valid := must.Get(json.Marshal(FromTrainer(tiny, "", "")))(f)
	f.Add(valid)
	f.Add(valid[:len(valid)/2])
	for _, at := range []int{10, len(valid) / 3, len(valid) - 40} {
		flipped := bytes.Clone(valid)
		flipped[at] ^= 4
		f.Add(flipped)
	}
	guard := newGuard()
	w := someWindow(3)
	combos := guard.Combos(nil, w)
	dst := make([]float64, len(combos))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Read(bytes.NewReader(text), "name.json")
		if err != nil {
			if !errors.Is(err, ErrCheckpoint) || !strings.Contains(err.Error(), "name.json") {
				t.Fatal(err)
			}
			return
		}
		net := must.Get(c.Network(guard.Predictor))(t)
		var p rlcore.Policy = NewPolicy("dqn", net)
		p.Score(dst, w, combos)
	})
}
