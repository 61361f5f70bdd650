package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// TestMain turns the test binary into slurmbridge itself where it is called as that, in scripts, and where tests run it
// as another user and kill it.
func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"slurmbridge": main}) }

// TestScripts calls commands as people do, each script in a folder of its own: one situation a paragraph, with what the
// commands answer. Settings are such that nothing runs: a free port, no Slurm in $BIN, and no database yet.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			defer l.Close()
			in := func(name string) string { return env.WorkDir + "/" + name }
			for name, value := range map[string]string{
				"BIN": in("bin"), "SLURMBRIDGE_BIN_DIR": in("bin"), "SLURMBRIDGE_DATABASE": in("db"),
				"SLURMBRIDGE_RUN_DIR": env.WorkDir,
				"SLURMBRIDGE_LISTEN":  l.Addr().String(),
			} {
				env.Setenv(name, value)
			}
			return os.MkdirAll(in("bin"), 0o700)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"refused": refused, "between": between, "answers": answers,
			"history": onDatabase(func(t strict, st *store.Store, args []string) { writeHistory(t, st, job.Mode(args[0])) }),
			"ran": onDatabase(func(t strict, st *store.Store, args []string) {
				record := must.Get(strconv.ParseInt(args[1], 10, 64))(t)
				writeRun(t, st, args[0], record, job.Terms{Report: args[2] == "report"})
			}),
			"newer": onDatabase(func(t strict, st *store.Store, _ []string) {
				must.Get(st.DB().ExecContext(context.Background(), `PRAGMA user_version = 99`))(t)
			}),
		},
	})
}

// refused STATUS SENTENCE COMMAND...: the command ends with the status, prints nothing, and one line with the sentence
// on standard error.
func refused(ts *testscript.TestScript, _ bool, args []string) {
	var exit *exec.ExitError
	if err := ts.Exec(args[2], args[3:]...); !errors.As(err, &exit) || strconv.Itoa(exit.ExitCode()) != args[0] {
		ts.Fatalf("%q ends with %v, want %s", args[2:], err, args[0])
	}
	out, errOut := ts.ReadFile("stdout"), ts.ReadFile("stderr")
	if out != "" || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, args[1]) {
		ts.Fatalf("%q prints %.500q and says %.500q, want %q", args[2:], out, errOut, args[1])
	}
}

// between FILE PATH LOW TOP: a figure in a JSON file (stdout = what the last command printed) is in these bounds. PATH
// names the fields that lead to it, from the outermost on, with / between them.
func between(ts *testscript.TestScript, neg bool, args []string) {
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &v))
	for name := range strings.SplitSeq(args[1], "/") {
		switch of := v.(type) {
		case map[string]any:
			v = of[name]
		case []any:
			i, err := strconv.Atoi(name)
			ts.Check(err)
			v = of[i]
		}
	}
	var low, top float64
	_, err := fmt.Sscan(args[2]+" "+args[3], &low, &top)
	ts.Check(err)
	if f, is := v.(float64); !is || (low <= f && f <= top) == neg {
		ts.Fatalf("%s of %s is %v, want %s to %s", args[1], args[0], v, args[2], args[3])
	}
}

// answers FOLDER: from now on a daemon answers with the folder's files, in which {{ago "2h"}} is a time.
func answers(ts *testscript.TestScript, _ bool, args []string) {
	folder := ts.MkAbs(args[0])
	ago := func(d string) (string, error) {
		long, err := time.ParseDuration(d)
		return time.Now().Add(-long).Format(time.RFC3339), err
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		text, err := os.ReadFile(filepath.Join(folder, filepath.Clean(req.URL.Path)))
		if err != nil {
			http.Error(w, "no page of it", http.StatusNotFound)
			return
		}
		page := template.Must(template.New("").Funcs(template.FuncMap{"ago": ago}).Parse(string(text)))
		_ = page.Execute(w, nil)
	}))
	ts.Defer(srv.Close)
	ts.Setenv("SLURMBRIDGE_LISTEN", srv.Listener.Addr().String())
}

// strict lets what is written for tests end a script.
type strict struct{ *testscript.TestScript }

func (s strict) Helper()                           {}
func (s strict) Errorf(format string, args ...any) { s.Fatalf(format, args...) }
func (s strict) Fatal(args ...any)                 { s.Fatalf("%s", fmt.Sprint(args...)) }

// onDatabase is a script's command that writes into its database.
func onDatabase(do func(t strict, st *store.Store, args []string)) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		st, err := store.Open(context.Background(), ts.Getenv("SLURMBRIDGE_DATABASE"))
		ts.Check(err)
		defer st.Close()
		do(strict{ts}, st, args)
	}
}

// writeHistory fills a database (history MODE): three jobs of an hour waited for one GPU from three hours
// ago on; two of them shared it, the third ran alone.
func writeHistory(t must.T, st *store.Store, mode job.Mode) {
	t.Helper()
	ctx := context.Background()
	j := journal.New(st.DB())
	must.OK(t, st.Import(ctx,
		[]*rlcore.Profile{{
			App: "md", DurationS: 3600, PeriodS: 3600,
			Series: []rlcore.Use{{GPU: 0.3, Core: 0.2, MemMiB: 2000}},
		}}))
	zero := time.Now().Add(-3 * time.Hour).Truncate(time.Second)
	at := func(min int) time.Time { return zero.Add(time.Duration(min) * time.Minute) }
	waiting := func(ref string) job.Job {
		return job.Job{
			Ref: ref, User: "ann", Account: "lab", Partition: "gpu", State: job.Pending, Priority: 1, Submit: zero,
			Request: job.GPURequest{Kind: job.Shares, Count: 100},
		}
	}
	on := func(ref string, start int) job.Job {
		x := waiting(ref)
		x.State, x.Start, x.Nodes, x.GPUs = job.Running, at(start), "n1", []int{0}
		return x
	}
	poll := func(min int, jobs ...job.Job) *job.Status {
		return &job.Status{
			Mode: mode, Apps: map[string]job.App{"1": {Key: "md"}, "2": {Key: "md"}, "3": {Key: "md"}},
			Snap: &job.Snapshot{
				At: at(min), Jobs: jobs,
				Nodes: []job.Node{{Name: "n1", GPUs: 1, GPUType: "titanxp", Up: true, Partitions: []string{"gpu"}}},
			},
		}
	}
	first := poll(0, waiting("1"), waiting("2"), waiting("3"))
	first.Explanations = map[string]*job.Explanation{"3": {Vetoes: []job.Veto{{
		With: []string{"1"}, Node: "n1",
		Reason: rlcore.VetoMemory,
	}}}}
	second := poll(10, on("1", 0), on("2", 0), waiting("3"))
	second.Groups = []job.Group{{ID: 1, Policy: "greedy", Members: []job.Member{
		{Ref: "1", State: job.MemberRunning, Predicted: 1.1}, {Ref: "2", State: job.MemberRunning, Predicted: 1.12},
	}}}
	second.Explanations = map[string]*job.Explanation{"3": {SoleVetoes: []rlcore.Veto{rlcore.VetoMemory}}}
	for _, st := range []*job.Status{first, second, poll(80, on("3", 70)), poll(140)} {
		var left []tracker.Left
		if st.Snap.At.Equal(at(80)) {
			for _, ref := range []string{"1", "2"} {
				e := history.Ending{RunState: history.RunState{Start: at(0)}, Member: &job.Member{Predicted: 1.1}}
				left = append(left, tracker.Left{Ref: ref, Ending: e})
			}
		}
		must.OK(t, j.RecordRuns(ctx, st, left))
		must.OK(t, j.RecordPoll(ctx, st))
	}
	for i, span := range [][2]int{{0, 70}, {0, 66}, {70, 130}} {
		r := &gpuprof.Record{
			JobID: int64(i + 1), Node: "n1", User: "ann", Start: at(span[0]).Add(300 * time.Millisecond), End: at(span[1]),
			GPUs: []gpuprof.GPU{{UUID: "GPU-1", MemMiB: 12196}}, Shared: true,
		}
		must.Get(st.AddRecord(ctx, r, "md"))(t)
		run := must.Get(past(st).Unjudged(ctx))(t)[0]
		run.Ending.How.State = "COMPLETED"
		run.Outcome = &history.Outcome{SoloS: 3600, Slowdown: float64(span[1]-span[0]) / 60}
		if i < 2 {
			run.CoRunners, run.Outcome.Contract = []history.CoRunner{{Ref: fmt.Sprint(2 - i)}}, 1.2
		}
		must.OK(t, past(st).Store(ctx, &run, &interference.Standing{}, nil))
	}
}

// writeRun writes down a run of ann's that ended a minute ago and shared with a job of bob's (ran REF RECORD report|none).
func writeRun(t must.T, st *store.Store, ref string, record int64, terms job.Terms) {
	t.Helper()
	start, end := time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	r := history.Run{
		ID: record, Ref: ref, User: "ann", Mode: job.Active, Start: start, End: end, Node: "n1", GPUs: []int{0}, Shares: 50,
		Terms: terms, CoRunners: []history.CoRunner{{Ref: "8", App: "secret", Owner: "bob"}}, Outcome: &history.Outcome{},
		Ending: history.Ending{How: job.Description{State: "COMPLETED"}},
	}
	must.Get(st.DB().ExecContext(context.Background(), `INSERT INTO run (ref, ended, record, judged, detail)
		VALUES (?, ?, ?, 1, ?)`, ref, end.UnixMilli(), record, database.JSON(&r)))(t)
}

// A training that is interrupted writes what was learned up to then.
func TestTrainInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut bytes.Buffer
	file := filepath.Join(t.TempDir(), "dqn.json")
	root := newRoot(&out, &errOut)
	root.SetArgs([]string{"lab", "train", "--workload", "random", "--rounds", "3", "--out", file, "--json"})
	must.OK(t, root.ExecuteContext(ctx))
	must.Equal(t, out.String()+errOut.String(), "[]\nInterrupted after round 0.\n")
	must.Get(dqn.Load(file))(t)
}
