package httpapi

import (
	"context"
	"errors"
	"fmt"
	"html"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// busy is a cluster in full work: nodes of four GPUs, that many waiting jobs, six hours behind it. Groups of one to three
// jobs follow each other on each GPU; plain Slurm would have taken twice as long for those that shared.
func busy(nodes, pending int) *Server {
	r := rand.New(rand.NewPCG(1, 2))
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	app := func() string { return one("gromacs", "namd", "resnet50", "bert-large", "lammps", "vasp-6") }
	user := func() string { return one("ann", "bob", "carol", "dave", "erin") }
	id := 1000
	next := func() string { id++; return fmt.Sprint(id) }
	st := &job.Status{
		At: zero, Mode: job.Active, Policy: "dqn", Gate: "17", Lease: 52 * time.Second, Window: 5, MaxDelayS: 41,
		Apps: map[string]job.App{}, Explanations: map[string]*job.Explanation{}, Unmanaged: map[string]string{},
		Snap: &job.Snapshot{At: zero, Release: "22.05.8"}, Plan: &job.Plan{},
	}
	var ran []history.Run
	for n := range nodes {
		node := job.Node{Name: fmt.Sprintf("gpu%03d", n+1), Up: n%29 != 28, GPUs: 4, GPUType: "a100"}
		st.Snap.Nodes = append(st.Snap.Nodes, node)
		for g := 0; node.Up && g < 4; g++ {
			for at, end := zero.Add(-6*time.Hour), (time.Time{}); !end.After(zero); at = end.Add(time.Minute) {
				members, length := 1+r.IntN(3), time.Duration(5+r.IntN(60))*time.Minute
				end = at.Add(length)
				for range members {
					run := history.Run{
						Ref: next(), User: user(), App: app(), Start: at, End: end, Node: node.Name, GPUs: []int{g},
						Shares: 100 / members,
					}
					if end.After(zero) {
						st.Snap.Jobs = append(st.Snap.Jobs, job.Job{
							Ref: run.Ref, User: run.User, State: job.Running, Nodes: node.Name, GPUs: run.GPUs, Start: at, Submit: at,
							Request: job.GPURequest{Kind: job.Shares, Count: run.Shares},
						})
						st.Apps[run.Ref] = job.App{Key: run.App, Profile: &rlcore.Profile{App: run.App, DurationS: length.Seconds()}}
						continue
					}
					if p := 1 + 0.5*r.Float64(); members > 1 {
						run.Submit, run.CoRunners = at, []history.CoRunner{{Ref: "x"}}
						run.Ending = history.Ending{PlainEnd: end.Add(length), Member: &job.Member{Predicted: p}}
						run.Outcome = &history.Outcome{SoloS: 60, Slowdown: max(1, p+0.08*r.NormFloat64()), Contract: 1.5}
						run.Outcome.Broken = run.Outcome.Slowdown > 1.5
					}
					ran = append(ran, run)
				}
			}
		}
	}
	for i := range pending {
		ref, key := next(), app()
		st.Snap.Jobs = append(st.Snap.Jobs, job.Job{
			Ref: ref, User: user(), Account: "physics", State: job.Pending, Priority: 1,
			Submit:  zero.Add(-time.Duration(pending-i) * time.Second * 7),
			Request: job.GPURequest{Kind: job.Shares, Count: 100},
		})
		st.Apps[ref] = job.App{Key: key}
		if i < 8 {
			st.Explanations[ref] = &job.Explanation{
				Ref: ref, App: key, Known: true, Status: "waits for a GPU: others come first on gpu001", LatestDelayS: 259,
				Considered: slices.Repeat([]job.Considered{{
					Jobs: []string{ref, fmt.Sprint(id - 1)}, Node: "gpu001", Value: 1.23, Slowdown: []float64{1.1, 1.2},
				}}, 9),
				Vetoes: slices.Repeat([]job.Veto{{
					With: []string{fmt.Sprint(id - 1)}, Node: "gpu001", Reason: rlcore.VetoMemory,
				}}, 9),
			}
		}
		switch i {
		case 1:
			st.Groups = []job.Group{{
				ID: 9, Kind: job.StartNow, State: job.Released, Node: "gpu001", GPU: 0,
				Members: []job.Member{
					{Ref: ref, User: "ann", App: key, Predicted: 1.2}, {Ref: fmt.Sprint(id - 1), User: "bob", App: key, Predicted: 1.1},
				},
			}}
		case 9:
			st.Unmanaged[ref] = "its owner edited it"
		}
	}
	return &Server{
		Status: func() *job.Status { return st }, Now: func() time.Time { return zero.Add(4 * time.Second) },
		TaskName: plainName, Owner: unowned,
		Fresh: time.Minute, Gatherer: prometheus.NewRegistry(), Runs: had(ran, nil),
	}
}

// had has runs, and perhaps an error.
func had(runs []history.Run, err error) func(context.Context, history.Filter) iter.Seq2[history.Run, error] {
	return func(context.Context, history.Filter) iter.Seq2[history.Run, error] {
		return func(yield func(history.Run, error) bool) {
			for _, r := range runs {
				if !yield(r, nil) {
					return
				}
			}
			if err != nil {
				yield(history.Run{}, err)
			}
		}
	}
}

func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return w
}

func TestPage(t *testing.T) {
	w := get(t, busy(2, 30).Handler(), "/")
	body := w.Body.String()
	if w.Code != http.StatusOK {
		t.Fatal(w.Code, body)
	}
	for _, want := range []string{
		"<b>dqn</b>", "Slurm 22.05.8", "until gate 17 opens", "30 of 30 waiting jobs", "starts now on gpu001 gpu 0",
		"others come first",
		"<b>50 %</b><span>of the turnaround saved in 6 h", "on plain Slurm, 50 % saved; 0 of", "refused with",
		"slowdown 1.10 / 1.20", "its owner edited it", `class="plan"`, `class="two"`, `class="three"`, "<circle",
		`name="viewport"`, `lang="en"`, "<caption>", `role="img"`, `http-equiv="refresh" content="30"`,
	} {
		must.Contain(t, body, want)
	}
	csp := w.Header().Get("Content-Security-Policy")
	if !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") ||
		strings.Contains(body, "<script") || strings.Contains(body, " style=") {
		t.Errorf("policy %q", csp)
	}
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff",
		"Content-Type":           "text/html; charset=utf-8", "Referrer-Policy": "no-referrer",
	} {
		must.Equal(t, w.Header().Get(name), want, name)
	}
	// Nothing is fetched from anywhere else.
	must.Equal(t, regexp.MustCompile(`(?i)(src|href|url\()\s*=?\s*"?(https?:)?//`).FindString(body), "",
		"what the page would load from elsewhere")
}

// Whatever a user could have written comes out as text.
func TestPageEscapes(t *testing.T) {
	const evil = `</title></svg><script>alert(1)</script><img src=x onerror="alert(1)">'`
	s := busy(1, 1)
	st := s.Status()
	j := &st.Snap.Jobs[len(st.Snap.Jobs)-1]
	j.User, j.Account, j.Reason = evil, evil, evil
	st.Apps[j.Ref] = job.App{Key: evil}
	st.Explanations[j.Ref] = &job.Explanation{
		App: evil, Status: evil,
		Vetoes:     []job.Veto{{With: []string{evil}, Node: evil, Reason: rlcore.VetoMemory}},
		Considered: []job.Considered{{Jobs: []string{evil}, Node: evil}},
	}
	run := &st.Snap.Jobs[0]
	run.User = evil
	st.Apps[run.Ref] = job.App{Key: evil, Profile: &rlcore.Profile{DurationS: 1e5}}
	st.Unmanaged[evil], st.Err, st.Policy = evil, evil, evil
	st.Groups = append(st.Groups, job.Group{
		State: job.Released, Node: st.Snap.Nodes[0].Name,
		Members: []job.Member{{Ref: evil, User: evil, App: evil}},
	})
	s.Runs = had([]history.Run{{
		Ref: evil, User: evil, App: evil, Node: st.Snap.Nodes[0].Name, GPUs: []int{0}, Start: zero.Add(-3 * time.Hour),
		End:     zero.Add(-time.Hour),
		Outcome: &history.Outcome{Slowdown: 1.2}, CoRunners: []history.CoRunner{{Ref: evil}},
		Ending: history.Ending{Member: &job.Member{Predicted: 1.1}},
	}}, nil)
	st.At = zero.Add(-time.Hour) // the error is shown
	body := get(t, s.Handler(), "/").Body.String()
	if strings.Contains(body, "<script") || strings.Contains(body, "<img") || strings.Contains(body, "onerror=\"") {
		t.Error("text became markup")
	}
	if n := strings.Count(html.UnescapeString(body), "<script>alert(1)"); n < 12 {
		t.Errorf("it stands there only %d times: something isn't shown, or not tested", n)
	}
}

// A page is small and quick whatever the cluster.
func TestPageOfALargeCluster(t *testing.T) {
	s := busy(125, 10_000)
	h := s.Handler()
	for path, most := range map[string]int{"/": 300_000, "/?gpus=100&jobs=500": 900_000} {
		started := time.Now()
		w := get(t, h, path)
		if n := w.Body.Len(); w.Code != http.StatusOK || n > most {
			t.Errorf("%s: %d, %d bytes", path, w.Code, n)
		}
		t.Logf("%s: %d bytes, %v", path, w.Body.Len(), time.Since(started))
	}
	body := get(t, h, "/").Body.String()
	for _, want := range []string{"24 of 500 GPUs", "40 of 10000 waiting jobs", "skip=24"} {
		must.Contain(t, body, want)
	}
	if body := get(t, h, "/?skip=480").Body.String(); !strings.Contains(body, "20 of 500 GPUs") ||
		strings.Contains(body, "the next ones") {
		t.Error("the last GPUs are not shown")
	}
	must.Equal(t, get(t, h, "/?skip=100000").Code, http.StatusOK, "past the last GPU")
}

// What was read of the past serves everybody for a while; what a query says of the page is so, or is refused.
func TestPageOptions(t *testing.T) {
	s := busy(1, 3)
	read, now := 0, zero
	s.Now = func() time.Time { return now }
	s.Runs = func(ctx context.Context, f history.Filter) iter.Seq2[history.Run, error] {
		read++
		return had(nil, nil)(ctx, f)
	}
	h := s.Handler()
	for _, step := range []struct {
		path  string
		after time.Duration
		reads int
	}{{"/", 0, 1}, {"/?jobs=3", readAgain - 1, 1}, {"/", 1, 2}, {"/?hours=1", 0, 3}} {
		now = now.Add(step.after)
		get(t, h, step.path)
		must.Equal(t, read, step.reads, step.path)
	}
	for _, bad := range []string{
		"hours=0", "hours=1000", "gpus=101", "gpus=-1", "skip=-1", "jobs=9999999999", "refresh=x",
		"hours=<script>",
	} {
		w := get(t, h, "/?"+bad)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "takes a number") ||
			strings.Contains(w.Body.String(), "<script") {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
	if body := get(t, h, "/?refresh=0&hours=24").Body.String(); strings.Contains(body, `http-equiv="refresh"`) ||
		!strings.Contains(body, "hours=24") {
		t.Error("it reloads itself, or forgets what it was asked")
	}
}

// Without a look, a journal or a gate the page says what there is.
func TestPageInTrouble(t *testing.T) {
	s := busy(1, 1)
	s.Status = func() *job.Status { return nil }
	began := s.Now()
	now := began
	s.Now = func() time.Time { return now }
	h := s.Handler()
	if body := get(t, h, "/").Body.String(); strings.Contains(body, `role="alert"`) ||
		!strings.Contains(body, "polls Slurm for the first time") {
		t.Errorf("in its first moment: %s", body)
	}
	now = began.Add(s.Fresh + time.Second)
	if w := get(t, h, "/"); w.Code != http.StatusOK ||
		!strings.Contains(w.Body.String(), "Slurm has not been polled yet") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	s.Status = func() *job.Status { return &job.Status{Err: "slurmctld is down"} }
	if w := get(t, s.Handler(), "/"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "slurmctld is down") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	s = busy(1, 1)
	s.Runs = had(nil, errors.New("/var/lib/secret: I/O error"))
	s.Status().Gate = ""
	body := get(t, s.Handler(), "/").Body.String()
	if !strings.Contains(body, "past runs can&#39;t be read") || strings.Contains(body, "secret") ||
		!strings.Contains(body, "shared jobs run alone") {
		t.Error(body)
	}
	s = busy(1, 1)
	s.Runs = nil
	if w := get(t, s.Handler(), "/"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "gpu001 gpu 0") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Of more runs than a picture has room for the latest are drawn.
func TestTheLatestRunsAreDrawn(t *testing.T) {
	s := busy(1, 1)
	var ran []history.Run
	for i := range 500 { // the latest first, as they are read
		ran = append(ran, history.Run{
			Ref: fmt.Sprint("run", i), User: "ann", End: s.Now().Add(-time.Duration(i) * time.Second),
			CoRunners: []history.CoRunner{{Ref: "x"}}, Outcome: &history.Outcome{Slowdown: 1.2},
			Ending: history.Ending{Member: &job.Member{Predicted: 1.1}},
		})
	}
	s.Runs = had(ran, nil)
	body := get(t, s.Handler(), "/").Body.String()
	if !strings.Contains(body, "job run0,") || strings.Contains(body, "job run499,") {
		t.Error("the earliest runs are drawn")
	}
}

// The timeline begins with the first job that is shown and ends where nothing more is expected, however many hours were
// asked for; of longer ones it shows the hours.
func TestTimelineFitsWhatIsThere(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	draw := func(from, to time.Duration) string {
		var spans []chart.Span
		if from != to {
			spans = []chart.Span{{Job: "7", From: now.Add(from), To: now.Add(to)}}
		}
		l := drawLanes([]lane{{GPU{Up: true}, spans}}, now.Add(-6*time.Hour), now)
		return fmt.Sprint(now.Sub(l.From), " ", l.To.Sub(now))
	}
	must.Equal(t, draw(-time.Minute, 2*time.Minute), "1m0s 2m0s", "one minute of history")
	must.Equal(t, draw(-9*time.Hour, 24*time.Hour), "6h0m0s 1h30m0s", "more than was asked for")
	must.Equal(t, draw(-2*time.Hour, -time.Hour), "2h0m0s 6m0s", "nothing expected")
	must.Equal(t, draw(0, 0), "6h0m0s 18m0s", "nothing at all")
}
