package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// shown believes a credential "UID PAYLOAD"; user 1000 is ann, 1001 bob.
var shown = &Asker{
	Header: "Credential",
	Hint:   func(error) string { return "look into it" },
	Decode: func(_ context.Context, _, cred string) (*credential.Credential, error) {
		var uid uint32
		word, payload, ok := strings.Cut(cred, " ")
		if _, err := fmt.Sscan(word, &uid); err != nil || !ok {
			return nil, errors.New("proves nothing")
		}
		return &credential.Credential{UID: uid, Payload: payload}, nil
	},
	Trusted: func(uid uint32) bool { return uid == 0 },
	Name:    func(uid uint32) string { return map[uint32]string{1000: "ann", 1001: "bob"}[uid] },
}

// as signs a request.
func as(req *http.Request, uid uint32) *http.Request {
	req.Header.Set(shown.Header, fmt.Sprintf("%d %s", uid, Question(req.URL.Path)))
	return req
}

// answers asks a handler as a user, and returns code and body.
func answers(h http.Handler) func(path string, uid int) (int, string) {
	return func(path string, uid int) (int, string) {
		req, w := httptest.NewRequest(http.MethodGet, path, http.NoBody), httptest.NewRecorder()
		if uid != nobody {
			as(req, uint32(uid))
		}
		h.ServeHTTP(w, req)
		return w.Code, w.Body.String()
	}
}

// The users of shown; nobody has no credential.
const nobody, root, ann, bob = -1, 0, 1000, 1001

// others is a busy server whose jobs, runs and outcomes are annette's, each an array task with index 5, but for ann's
// job 7.
func others(t *testing.T) *Server {
	t.Helper()
	asked := 0
	s := used(t, &asked)
	st := s.Status()
	st.Snap.PrivateJobs = true
	task := func(ref string) string { return ref + "_5" }
	apps := map[string]job.App{"7": {Key: "mine"}}
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		apps[task(j.Ref)] = job.App{Key: "secret-app"}
		j.Ref, j.User, j.Account, j.Name = task(j.Ref), "annette", "physics-dept", "secret-name"
		st.Unmanaged[j.Ref], st.WithoutMPS = "its owner edited it", append(st.WithoutMPS, j.Ref)
	}
	first := st.Snap.Jobs[0].Ref
	st.Apps, st.Unmanaged["7"] = apps, "ann edited it"
	st.Snap.Jobs = append(st.Snap.Jobs,
		job.Job{Ref: "7", User: "ann", State: job.Pending, Request: job.GPURequest{Kind: job.Shares, Count: 100}})
	refused := job.Veto{With: []string{first}, Node: "n1", Reason: rlcore.VetoMemory}
	readBack := job.Veto{}
	_ = readBack.UnmarshalText([]byte(refused.String()))
	note := &job.Explanation{
		Ref: "7", App: "mine", Considered: []job.Considered{{Jobs: []string{"7", "4711_5"}}},
		Vetoes: []job.Veto{refused, readBack},
	}
	st.Explanations = map[string]*job.Explanation{"7": note, first: {Ref: first, App: "secret-app"}}
	member := job.Member{Ref: "8_5", User: "annette", App: "secret-app", Rule: "user annette", State: job.MemberPrepared}
	group := job.Group{
		ID: 1, Node: st.Snap.Nodes[0].Name, State: job.Released,
		Members: []job.Member{{Ref: "7", User: "ann", App: "mine", State: job.MemberRunning}, member},
	}
	st.Groups, st.Mode = []job.Group{group}, job.Shadow
	st.Refused = []job.RefusedChanges{{
		Step: job.StepPrepare, Code: job.CodeOther, Text: "not of annette's",
		Example: "8_5", Times: 3,
	}}
	st.Plan = &job.Plan{Groups: []job.PlannedGroup{{
		Group:   group,
		Release: job.Change{Update: job.Update{Jobs: []string{"8_5"}}},
	}}, Starts: map[string]time.Time{first: zero}}
	s.Groups = func(context.Context, time.Time, int) ([]journal.Grouped, error) {
		return []journal.Grouped{{Group: group}}, nil
	}
	s.Owner = func(_ context.Context, ref string) (string, error) {
		return map[string]string{"7": "ann", "1001_5": "annette"}[ref], nil
	}
	s.Story = func(context.Context, string) (*journal.Story, error) {
		own := history.Run{
			Ref: "7", User: "ann", Outcome: &history.Outcome{},
			CoRunners: []history.CoRunner{{Ref: "8_5", App: "secret-app", Owner: "annette"}},
		}
		return &journal.Story{
			Note: note, Groups: []job.Group{group},
			Runs: []history.Run{own, {Ref: "7", User: "annette"}},
		}, nil
	}
	ran := must.List(t, s.Runs(context.Background(), history.Filter{}))
	for i := range ran {
		r := &ran[i]
		r.Ref, r.User, r.App = task(r.Ref), "annette", "secret-app"
		if r.Outcome != nil {
			r.Ending.PlainEnd = r.Start // so that the state and the page have a worst job
		}
	}
	s.Runs = had(ran, nil)
	return s
}

var secret = regexp.MustCompile(`annette|physics-dept|secret|\b\d+_5\b`)

// tellsNothing fails the test where an answer to anybody but an operator has another's secret. The number that was asked
// for may be in it.
func tellsNothing(t *testing.T, get func(path string, uid int) (int, string), paths ...string) {
	t.Helper()
	for _, path := range paths {
		for _, uid := range []int{nobody, ann, bob, 4711} {
			_, body := get(path, uid)
			if body = strings.ReplaceAll(body, strings.TrimPrefix(path, "/v1/why/"), ""); secret.MatchString(body) {
				t.Errorf("%s tells user %d %s", path, uid, secret.FindString(body))
			}
		}
	}
}

// Where Slurm hides usage alone, everybody sees their own of it, and operators all.
func TestPrivateUsage(t *testing.T) {
	asked := 0
	s := used(t, &asked)
	s.Status().Snap.PrivateUsage = true
	get := answers(s.Handler())
	tellsNothing(t, get, "/v1/usage", "/v1/usage/me", "/v1/idle", "/usage", "/usage?by=user", "/usage?by=account",
		"/usage?by=node")
	for path, uid := range map[string]int{"/v1/usage/me": ann, "/v1/idle": ann, "/v1/usage": root} {
		if code, body := get(path, uid); code != http.StatusOK || !strings.Contains(body, `"ann"`) {
			t.Errorf("%s tells user %d nothing: %d %s", path, uid, code, body)
		}
	}
}

// Where Slurm hides the jobs of others, no answer names one to anybody but its owner and the operators: not its number,
// its user, its account nor its application.
func TestPrivateJobs(t *testing.T) {
	s := others(t)
	known := func() []byte {
		st := s.Status()
		return must.Get(json.Marshal([]any{st, st.Snap, st.Apps, st.Plan, st.Explanations, st.Idle}))(t)
	}
	before := known()
	get := answers(s.Handler())
	tellsNothing(t, get, "/", "/?hours=72&jobs=500", "/v1/status", "/v1/plan", "/v1/groups", "/v1/why/7", "/v1/why/1001_5",
		"/metrics", "/v1/usage", "/v1/usage/me", "/v1/idle", "/usage", "/usage?by=user", "/usage?by=account", "/usage?by=node")
	for _, path := range []string{
		"/", "/v1/status", "/v1/plan", "/v1/groups", "/v1/why/7", "/v1/why/1001_5", "/v1/usage", "/v1/idle",
	} {
		if code, body := get(path, root); code != http.StatusOK || !secret.MatchString(body) {
			t.Errorf("%s tells root nothing: %d %.300s", path, code, body)
		}
	}
	if _, body := get("/v1/status", ann); !strings.Contains(body, "ann edited it") {
		t.Errorf("ann isn't told that her job is left to Slurm: %s", body)
	}
	// What is counted still is, and everybody's own jobs are there.
	if _, body := get("/v1/status", nobody); strings.Count(body, `"job": "other `) < 8 || strings.Contains(body, `"7"`) {
		t.Errorf("the state for nobody: %s", body)
	}
	for path, hers := range map[string]string{
		"/": "mine", "/v1/status": "mine", "/v1/groups": "mine", "/v1/usage/me": `"ann"`, "/v1/idle": `"7"`,
	} {
		if code, body := get(path, ann); code != http.StatusOK || !strings.Contains(body, hers) {
			t.Errorf("%s doesn't show ann her job: %d %s", path, code, body)
		}
	}
	if code, body := get("/v1/why/7", nobody); code != http.StatusUnauthorized || !strings.Contains(body, "no proof") {
		t.Errorf("nobody asks why: %d %s", code, body)
	}
	if code, body := get("/v1/why/7", ann); code != http.StatusOK || !strings.Contains(body, "mine") ||
		strings.Count(body, other) < 4 {
		t.Errorf("ann asks why: %d %s", code, body)
	}
	// That another's job has a number is hidden, too.
	taken, there := get("/v1/why/1001_5", bob)
	free, none := get("/v1/why/999999", bob)
	if taken != http.StatusNotFound || free != taken || strings.Replace(there, "1001_5", "999999", 1) != none ||
		!strings.Contains(none, "not yours") {
		t.Errorf("bob asks for another's job: %d %s; for none: %d %s", taken, there, free, none)
	}
	must.Equal(t, before, known(), "what the bridge knows")
	// Ann learns that her job runs beside others, and not beside whose.
	jobs := s.Status().Snap.Jobs
	mine := &jobs[len(jobs)-1]
	mine.State, mine.Nodes, mine.GPUs = job.Running, jobs[0].Nodes, jobs[0].GPUs
	if code, body := get("/v1/why/7", ann); code != http.StatusOK || !strings.Contains(body, `"on"`) ||
		!strings.Contains(body, `"with"`) || secret.MatchString(body) {
		t.Errorf("of her job that runs: %d %s", code, body)
	}
}

// Slurm's tokens may name a user whom the controller doesn't know; another of that number isn't
// taken for that user, and what is wrong on the controller isn't told.
func TestNamesOfTokens(t *testing.T) {
	cred, err := &credential.Credential{UID: 1000, User: "carol", Payload: Question("/v1/why/7")}, error(nil)
	a := &Asker{
		Header: "Credential", Hint: func(error) string { return "look into it" }, Trusted: shown.Trusted, Name: shown.Name,
		Decode: func(context.Context, string, string) (*credential.Credential, error) { return cred, err },
	}
	req := httptest.NewRequest(http.MethodGet, "/v1/why/7", http.NoBody)
	req.Header.Set(a.Header, "x")
	w := httptest.NewRecorder()
	must.Equal(t, a.viewer(w, req), viewer{uid: ann, user: "carol"})
	err = fmt.Errorf("%w: /etc/slurmbridge/key has mode 0644", credential.ErrDown)
	if who := a.viewer(w, req); who.err == nil || strings.Contains(who.err.Error(), "/etc") ||
		!strings.Contains(who.err.Error(), "look into it") {
		t.Errorf("%+v", who)
	}
	cred.User, err = "", nil
	must.Equal(t, a.viewer(w, req), viewer{uid: ann, user: "ann"}, "a token without a name")
	var nobody *Asker
	must.Equal(t, nobody.viewer(w, req), viewer{err: errNobody}, "where nobody can show who they are")
}

func TestMemory(t *testing.T) {
	s := busy(1, 0)
	s.Nodes, s.Memory = shown, func(_ context.Context, ref, user string) (out MemoryReport, err error) {
		switch {
		case ref == "5":
			return out, errors.New("disk full of secrets")
		case ref == "7" && user != "bob", ref == "120_4":
			return MemoryReport{MiB: 4402}, nil
		}
		return out, nil
	}
	mux := s.Handler()
	for _, c := range []struct {
		method, path string
		code         int
		mib          int64
	}{
		{"GET", "/v1/memory/7", 200, 4402},
		{"GET", "/v1/memory/7?user=ann", 200, 4402},
		{"GET", "/v1/memory/7?user=bob", 200, 0},
		{"GET", "/v1/memory/120_4", 200, 4402},
		{"GET", "/v1/memory/8", 200, 0},
		{"GET", "/v1/memory/5", 500, 0},
		{"GET", "/v1/memory/;", 400, 0},
		{"GET", "/v1/memory/7?user=%zz", 400, 0},
		{"GET", "/v1/memory/", 404, 0},
		{"POST", "/v1/memory/7", 405, 0},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, as(httptest.NewRequest(c.method, c.path, http.NoBody), 0))
		var got MemoryReport
		_ = json.Unmarshal(w.Body.Bytes(), &got)
		must.Equal(t, w.Code, c.code, "%s %s: %s", c.method, c.path, w.Body)
		must.Equal(t, got.MiB, c.mib, "MiB: %s %s", c.method, c.path)
	}
	// Nobody but a node is told how much memory a job needs.
	lies, anothers := httptest.NewRequest(http.MethodGet, "/v1/memory/7", http.NoBody),
		as(httptest.NewRequest(http.MethodGet, "/v1/memory/8", http.NoBody), root)
	lies.Header.Set(shown.Header, "junk")
	anothers.URL.Path = "/v1/memory/7"
	for what, req := range map[string]*http.Request{
		"nobody":                 httptest.NewRequest(http.MethodGet, "/v1/memory/7", http.NoBody),
		"a user":                 as(httptest.NewRequest(http.MethodGet, "/v1/memory/7", http.NoBody), ann),
		"another's credential":   anothers,
		"a credential that lies": lies,
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, req)
		must.Equal(t, w.Code, http.StatusUnauthorized, what)
	}
}

// What an owner is told of a run, where Slurm hides jobs, names the owner's own jobs and no others.
func TestWhatAnOwnerIsTold(t *testing.T) {
	r := history.Run{
		Ref: "7", User: "ann", Outcome: &history.Outcome{Suspicion: history.Suspicion{Suspect: "9 failed"}},
		CoRunners: []history.CoRunner{{Ref: "8", App: "own", Owner: "ann"}, {Ref: "9", App: "secret", Owner: "annette"}},
	}
	ForOwner(&r)
	must.Equal(t, r.CoRunners, []history.CoRunner{{Ref: "8"}, {Ref: "other 1"}})
	must.Equal(t, r.Outcome.Suspect, "")
}
