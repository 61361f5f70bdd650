package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
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

// Where Slurm hides the jobs of others nothing that is served names them, and why answers
// their owners and the operators.
func TestPrivateJobs(t *testing.T) {
	s := busy(2, 4)
	s.Asker = shown
	st := s.Status()
	st.Snap.PrivateJobs = true
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		j.User, j.Account = "annette", "physics-dept"
		st.Apps[j.Ref] = job.App{Key: "secret-app"}
	}
	group := job.Group{ID: 1, Members: []job.Member{{Ref: "7", User: "ann", App: "mine"}, {Ref: "8", User: "annette", App: "secret-app", Rule: "user annette"}}}
	st.Groups = []job.Group{group}
	s.Groups = func(context.Context, time.Time, int) ([]journal.Grouped, error) {
		return []journal.Grouped{{Group: group}}, nil
	}
	s.Owner = func(_ context.Context, ref string) (string, error) { return map[string]string{"7": "ann"}[ref], nil }
	s.Story = func(context.Context, string) (*journal.Story, error) {
		members := append([]job.Member{}, group.Members...)
		return &journal.Story{Groups: []job.Group{{Members: members}}, Outcomes: []history.Outcome{{Ref: "7", User: "ann", WithApps: []string{"secret-app"}}, {Ref: "7", User: "annette"}}}, nil
	}
	planned := group // what shadow mode would do is drawn, too
	planned.Node, planned.Members = st.Snap.Nodes[0].Name, []job.Member{{Ref: "9", User: "annette", App: "secret-app", State: job.MemberPrepared}}
	st.Mode, st.Plan = job.Shadow, &job.Plan{Groups: []job.PlannedGroup{{Group: planned}}}
	h := s.Handler()
	get := func(req *http.Request) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
	for _, path := range []string{"/", "/v1/status", "/v1/plan", "/v1/groups", "/metrics"} {
		w := get(httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if w.Code != http.StatusOK && path != "/v1/plan" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		for _, word := range []string{"annette", "physics-dept", "secret-app"} {
			if strings.Contains(w.Body.String(), word) {
				t.Errorf("%s names %s", path, word)
			}
		}
	}
	ask := func() *http.Request { return httptest.NewRequest(http.MethodGet, "/v1/why/7", http.NoBody) }
	if w := get(ask()); w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") != shown.Header {
		t.Errorf("nobody asks why: %d", w.Code)
	}
	if w := get(as(ask(), 1001)); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), "not yours") {
		t.Errorf("bob asks why: %d %s", w.Code, w.Body)
	}
	if w := get(as(ask(), 1000)); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "mine") || strings.Contains(w.Body.String(), "secret") || strings.Contains(w.Body.String(), "annette") {
		t.Errorf("its owner asks why: %d %s", w.Code, w.Body)
	}
	if w := get(as(ask(), 0)); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "secret-app") {
		t.Errorf("root asks why: %d %s", w.Code, w.Body)
	}
	if st.Snap.Jobs[0].User != "annette" || group.Members[1].User != "annette" {
		t.Error("what the bridge knows has changed")
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
	for user, want := range map[string]bool{"carol": true, "ann": false, "": false} {
		if may, all, err := a.may(req, user); may != want || all || err != nil {
			t.Errorf("%q: %v, %v, %v", user, may, all, err)
		}
	}
	err = fmt.Errorf("%w: /etc/slurmbridge/key has mode 0644", credential.ErrDown)
	if may, _, err := a.may(req, "carol"); may || err == nil || strings.Contains(err.Error(), "/etc") || !strings.Contains(err.Error(), "look into it") {
		t.Errorf("%v, %v", may, err)
	}
	cred.User, err = "", nil
	if may, _, _ := a.may(req, "ann"); !may {
		t.Error("a token without a name is none of ann's")
	}
	var nobody *Asker
	if may, all, err := nobody.may(req, "ann"); may || all || err == nil {
		t.Error("where nobody can show who they are, somebody may")
	}
}

// Whoever the web configuration doesn't let in sees nothing of the page.
func TestPageBehindAPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yaml")
	password := "basic_auth_users:\n  admin: $2a$04$RT3PNIDdtc3UI//xcn3yF.AcEUo/.UR/rOsubCppsb.18d9se7M1W\n" // bcrypt of "secret"
	must.OK(t, os.WriteFile(file, []byte(password), 0o600))
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	srv := &http.Server{Handler: busy(1, 3).Handler()}
	done := make(chan error, 1)
	systemd := false
	go func() {
		done <- web.Serve(l, srv, &web.FlagConfig{WebListenAddresses: &[]string{l.Addr().String()}, WebSystemdSocket: &systemd, WebConfigFile: &file}, slog.New(slog.DiscardHandler))
	}()
	for pass, want := range map[string]int{"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized, "secret": http.StatusOK} {
		req, _ := http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+"/", http.NoBody)
		if pass != "" {
			req.SetBasicAuth("admin", pass)
		}
		resp := must.Get(http.DefaultClient.Do(req))(t)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || strings.Contains(string(body), "gpu001") != (want == http.StatusOK) {
			t.Errorf("password %q: %d %.80s", pass, resp.StatusCode, body)
		}
	}
	srv.Close()
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

func TestMemory(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET "+MemoryPath, &Memory{Asker: shown, Limit: func(_ context.Context, ref, user string) (out MemoryReport, err error) {
		switch {
		case ref == "5":
			return out, errors.New("disk full of secrets")
		case ref == "7" && user != "bob", ref == "120_4":
			return MemoryReport{MiB: 4402}, nil
		}
		return out, nil
	}})
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
		if w.Code != c.code || got.MiB != c.mib {
			t.Errorf("%s %s: %d %s, want %d, %d MiB", c.method, c.path, w.Code, w.Body, c.code, c.mib)
		}
	}
	// Nobody but a node is told how much memory a job needs.
	for what, req := range map[string]*http.Request{
		"nobody":                 httptest.NewRequest(http.MethodGet, "/v1/memory/7", http.NoBody),
		"a user":                 as(httptest.NewRequest(http.MethodGet, "/v1/memory/7", http.NoBody), 1000),
		"another's credential":   as(httptest.NewRequest(http.MethodGet, "/v1/memory/8", http.NoBody), 0),
		"a credential that lies": httptest.NewRequest(http.MethodGet, "/v1/memory/7", http.NoBody),
	} {
		if what == "another's credential" {
			req.URL.Path = "/v1/memory/7"
		}
		if what == "a credential that lies" {
			req.Header.Set(shown.Header, "junk")
		}
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, req); w.Code != http.StatusUnauthorized {
			t.Errorf("%s gets %d", what, w.Code)
		}
	}
}
