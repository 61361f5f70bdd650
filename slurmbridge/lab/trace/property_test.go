package trace

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
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
		must.OK(t, w.Write(rec))
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
			row := []string{
				j.ID, number(j.SubmitS), j.App, number(j.DurationS), j.User, strconv.Itoa(j.GPUs), number(j.LimitS),
				number(j.DeadlineS),
			}
			for i := range row {
				if i > 1 && row[i] == "0" && i != 2 && i != 4 {
					row[i] = ""
				}
			}
			want = append(want, j)
			rows = append(rows, row)
		}
		got := must.Get(ReadJobs(written(t, []string{
			"job", "submit_s", "app", "duration_s", "user", "gpus", "limit_s",
			"deadline_s",
		}, rows), "f"))(t)
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
			rows = append(rows, []string{
				app, number(p.DurationS), number(100 * u.GPU), "0", number(u.MemMiB),
				number(100 * u.Core), number(u.PCIeMBps), step,
			})
		}
		head := strings.Split("app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms", ",")
		got := must.Get(ReadProfiles(written(t, head, rows), "f"))(t)
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
			return pair(names.Draw(t, "victim"), names.Draw(t, "aggressor"),
				rapid.Float64Range(minSlowdown, maxSlowdown).Draw(t, "slowdown"))
		}), 1, 8).Draw(t, "pairs")
		var rows [][]string
		for _, p := range want {
			rows = append(rows, []string{p.Victim, p.Aggressor, number(p.Slowdown)})
		}
		got := must.Get(ReadPairs(written(t, []string{"victim", "aggressor", "slowdown"}, rows), "f"))(t)
		must.Equal(t, got, want)
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

// judge fails unless err is nil or an *Error.
func judge(t *testing.T, err error) bool {
	var where *Error
	if err != nil && !errors.As(err, &where) {
		t.Errorf("%T %v, want an *Error", err, err)
	}
	return err == nil
}

func judgeJobs(t *testing.T, jobs []Job, unknownDuration bool) {
	if len(jobs) == 0 {
		t.Error("neither a job nor an error")
	}
	for i, j := range jobs {
		given := j.DurationS >= minDurationS || unknownDuration && j.DurationS == 0
		if j.ID == "" || j.App == "" || !given || j.DurationS > maxDurationS || !(j.SubmitS >= 0) ||
			math.IsInf(j.SubmitS, 0) || j.GPUs < 0 ||
			!(j.LimitS >= 0 && j.LimitS <= maxDurationS) || j.DeadlineS != 0 &&
			!(j.DeadlineS > j.SubmitS && j.DeadlineS <= maxSubmitS) {
			t.Errorf("%+v", j)
		}
		if strings.ContainsAny(j.ID+j.App+j.User, "\n\r\x1b\x00") {
			t.Errorf("%+v can't be printed", j)
		}
		if i > 0 && j.SubmitS < jobs[i-1].SubmitS {
			t.Errorf("%+v comes too late", j)
		}
	}
}

func FuzzReadJobs(f *testing.F) {
	f.Add("job,submit_s,app,duration_s,user\n1,0,vgg11,55,u1\n2,3.5,\"a,b\",,\n")
	f.Add("\ufeffapp,job,gpus,submit_s\r\na,1,2,0\r\n")
	f.Add("job,submit_s,app\n1,NaN,a\n")
	f.Add("job,submit_s,app\n\"1\n")
	f.Add("job,submit_s,app,limit_s,deadline_s\n1,5,a,60,\n2,5,a,,65.5\n3,5,a,1e9,5\n")
	f.Fuzz(func(t *testing.T, text string) {
		if jobs, err := ReadJobs(strings.NewReader(text), "f"); judge(t, err) {
			judgeJobs(t, jobs, true)
		}
	})
}

func FuzzReadProfiles(f *testing.F) {
	f.Add("app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms\nx,60,97,30,1784,50,900,110\ny,,40,,,,,\n")
	f.Add("app,gpu_util\na,101\n")
	f.Add("app,gpu_util\na,0x1p2\n")
	f.Fuzz(func(t *testing.T, text string) {
		profiles, err := ReadProfiles(strings.NewReader(text), "f")
		if !judge(t, err) {
			return
		}
		if len(profiles) == 0 {
			t.Error("neither a profile nor an error")
		}
		for _, p := range profiles {
			if err := p.Validate(); err != nil || p.App == "" {
				t.Errorf("%+v: %v", p, err)
			}
		}
	})
}

func FuzzReadPairs(f *testing.F) {
	f.Add("victim,aggressor,slowdown\na,b,1.5\nb,a,0.9\n")
	f.Add("slowdown,victim,aggressor\n1e400,a,b\n")
	f.Add("victim,aggressor,slowdown\n\"a\",\"b\"\"\",1\n")
	f.Fuzz(func(t *testing.T, text string) {
		pairs, err := ReadPairs(strings.NewReader(text), "f")
		if !judge(t, err) {
			return
		}
		if len(pairs) == 0 {
			t.Error("neither a pair nor an error")
		}
		for _, p := range append(pairs, MeanPairs(pairs)...) {
			if p.Victim == "" || p.Aggressor == "" || !(p.Slowdown >= minSlowdown && p.Slowdown <= maxSlowdown) {
				t.Errorf("%+v", p)
			}
		}
	})
}

func FuzzReadSacct(f *testing.F) {
	f.Add(sacctHead + "1|a|b|u|2024-01-01T00:00:00|5|COMPLETED|gres/gpu:a100=2\n1.batch|batch||2024-01-01T00:00:00|5|COMPLETED|cpu=1\n")
	f.Add("JobID|JobName|Submit|Elapsed|Timelimit|TimelimitRaw\n1|a|2024-01-01T00:00:00|05:00|1-00:00:00|UNLIMITED\n2|a|2024-01-01T00:00:00|05:00|x|1e9\n")
	f.Add("JobIDRaw|JobName|Start|End|\r\n1|a\tb|1700000000|1700000060|\r\n")
	f.Add("JobID|JobName|Submit|Elapsed|ReqTRES\n1||2024-01-01T00:00:00|1-00:00:01.5|gres/gpu=1e9\n")
	f.Fuzz(func(t *testing.T, text string) {
		if jobs, _, err := ReadSacct(strings.NewReader(text), "f"); judge(t, err) {
			judgeJobs(t, jobs, false)
		}
	})
}
