package trace

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// names are printable, with what CSV must quote among them.
var names = rapid.StringMatching(`[a-zA-Z0-9é中,;"'|._-]([ a-zA-Z0-9é中,;"'|._-]{0,10}[a-z"])?`)

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// written is a CSV file with its columns in an order drawn, and one more.
func written(t *rapid.T, head []string, rows [][]string) *bytes.Buffer {
	order := rapid.Permutation(append(indexes(len(head)), -1)).Draw(t, "order")
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	w.UseCRLF = rapid.Bool().Draw(t, "CRLF")
	for i, row := range append([][]string{head}, rows...) {
		var rec []string
		for _, k := range order {
			if k < 0 {
				rec = append(rec, fmt.Sprintf("other %d", i))
				continue
			}
			rec = append(rec, row[k])
		}
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	return &b
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestJobsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfNDistinct(names, 1, 8, rapid.ID[string]).Draw(t, "ids")
		var want []Job
		var rows [][]string
		for _, id := range ids {
			j := Job{
				ID:        id,
				SubmitS:   rapid.Float64Range(0, maxSubmitS).Draw(t, "submit"),
				App:       names.Draw(t, "app"),
				DurationS: rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(minDurationS, maxDurationS)).Draw(t, "duration"),
				User:      rapid.OneOf(rapid.Just(""), names).Draw(t, "user"),
				GPUs:      rapid.IntRange(0, 16).Draw(t, "gpus"),
				LimitS:    rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(minDurationS, maxDurationS)).Draw(t, "limit"),
			}
			if rapid.Bool().Draw(t, "promised") && j.SubmitS < maxSubmitS-1 {
				j.DeadlineS = rapid.Float64Range(j.SubmitS+1, maxSubmitS).Draw(t, "deadline")
			}
			row := []string{j.ID, number(j.SubmitS), j.App, number(j.DurationS), j.User, strconv.Itoa(j.GPUs), number(j.LimitS), number(j.DeadlineS)}
			for i := range row {
				if i > 1 && row[i] == "0" && i != 2 && i != 4 {
					row[i] = ""
				}
			}
			want = append(want, j)
			rows = append(rows, row)
		}
		got, err := ReadJobs(written(t, []string{"job", "submit_s", "app", "duration_s", "user", "gpus", "limit_s", "deadline_s"}, rows), "f")
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, inOrder(want)) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	})
}

func TestProfilesRoundTrip(t *testing.T) {
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-12*max(1, math.Abs(a)) }
	rapid.Check(t, func(t *rapid.T) {
		apps := rapid.SliceOfNDistinct(names, 1, 8, rapid.ID[string]).Draw(t, "apps")
		var want []*rlcore.Profile
		var rows [][]string
		for _, app := range apps {
			u := rlcore.Use{
				GPU:      rapid.Float64Range(0, 1).Draw(t, "gpu"),
				Core:     rapid.Float64Range(0, 1).Draw(t, "core"),
				MemMiB:   rapid.Float64Range(0, 1e6).Draw(t, "mem"),
				PCIeMBps: rapid.Float64Range(0, 1e6).Draw(t, "pcie"),
			}
			p := &rlcore.Profile{
				App: app, DurationS: rapid.Float64Range(minDurationS, maxDurationS).Draw(t, "duration"),
				StepS: rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(1e-6, 1e3)).Draw(t, "step"), Series: []rlcore.Use{u},
			}
			step := ""
			if p.StepS > 0 {
				step = number(1000 * p.StepS)
			}
			want = append(want, p)
			rows = append(rows, []string{app, number(p.DurationS), number(100 * u.GPU), "0", number(u.MemMiB), number(100 * u.Core), number(u.PCIeMBps), step})
		}
		head := strings.Split("app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms", ",")
		got, err := ReadProfiles(written(t, head, rows), "f")
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			g, u, v := got[i], got[i].Series[0], w.Series[0]
			if g.App != w.App || g.DurationS != w.DurationS || g.PeriodS != w.DurationS || !near(g.StepS, w.StepS) ||
				!near(u.GPU, v.GPU) || !near(u.Core, v.Core) || u.MemMiB != v.MemMiB || u.PCIeMBps != v.PCIeMBps {
				t.Errorf("got %+v\nwant %+v", g, w)
			}
		}
	})
}

func TestPairsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Pair {
			return pair(names.Draw(t, "victim"), names.Draw(t, "aggressor"), rapid.Float64Range(minSlowdown, maxSlowdown).Draw(t, "slowdown"))
		}), 1, 8).Draw(t, "pairs")
		var rows [][]string
		for _, p := range want {
			rows = append(rows, []string{p.Victim, p.Aggressor, number(p.Slowdown)})
		}
		got, err := ReadPairs(written(t, []string{"victim", "aggressor", "slowdown"}, rows), "f")
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	})
}

// A job's name can't change what another column says, whatever its user put in it.
func TestSacctNameHoldsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := rapid.StringOf(rapid.RuneFrom([]rune("ab|=,\"'\t\x1b\u202e. 17-gres/gpu"))).Draw(t, "job name")
		text := sacctHead + "5|" + job + "|u|2024-01-01T00:00:00|60|COMPLETED|gres/gpu=1\n"
		got, _, err := ReadSacct(strings.NewReader(text), "f")
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].ID != "5" || got[0].User != "u" || got[0].DurationS != 60 || got[0].GPUs != 1 {
			t.Errorf("%+v", got)
		}
	})
}
