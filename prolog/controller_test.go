package prolog

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/keytest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/tlstest"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

// Whatever the controller answers, or doesn't, the job has a limit that makes sense or
// none, in time, and only what failed is told. For a job that no limit could be set for nobody is asked.
func TestAskForALimit(t *testing.T) {
	answers := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); fmt.Fprint(w, body) }
	}
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t) // takes calls and never answers
	defer silent.Close()
	long, sound := strings.Repeat("x", 1<<20), answers(200, `{"mib": 4402}`)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		url    string
		change func(h *Hook, j *JobFile) // nobody is asked then
		limit  int64                     // of a process
		err    string
	}{
		"known":             {answer: sound, limit: 4402},
		"by hand":           {answer: answers(200, `{"mib": 0, "by_hand": true}`)},
		"all of the card":   {answer: answers(200, `{"mib": 16160}`)},
		"zero":              {answer: answers(200, `{"mib": 0}`)},
		"more than a int64": {answer: answers(200, `{"mib": 9223372036854775808}`), err: "no limit"},
		"negative":          {answer: answers(200, `{"mib": -1}`), err: "no limit"},
		"a text":            {answer: answers(200, `{"mib": "1\nexport X=1"}`), err: "no limit"},
		"another program":   {answer: answers(200, `<html>`+long), err: "no limit"},
		"endless":           {answer: answers(200, `{"mib": 5, "x": "`+long+`"}`), err: "no limit"},
		"broken":            {answer: answers(500, "\x1b[2Jno\n"), err: `500: "\x1b[2Jno"`},
		"sent elsewhere":    {answer: http.RedirectHandler("/other", http.StatusFound).ServeHTTP, err: "302"},
		"slow": {answer: func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, err: "deadline"},
		"hanging":         {url: "http://" + silent.Addr().String(), err: "deadline"},
		"an old driver":   {answer: sound, change: func(h *Hook, _ *JobFile) { h.Cards[0].MemLimits = false }},
		"a card unheard":  {answer: sound, change: func(h *Hook, _ *JobFile) { h.Cards = nil }},
		"no memory known": {answer: sound, change: func(h *Hook, _ *JobFile) { h.Cards[0].MemMiB = 0 }},
		"no controller":   {answer: sound, change: func(h *Hook, _ *JobFile) { h.Controller = nil }},
		"no MPS":          {answer: sound, change: func(h *Hook, _ *JobFile) { h.MPS = nil }},
		"whole GPU":       {answer: sound, change: func(_ *Hook, j *JobFile) { j.Percent = 0 }},
		"two GPUs":        {answer: sound, change: func(_ *Hook, j *JobFile) { j.GPUs = []int{0, 1} }},
	} {
		var asked atomic.Int32
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			must.Equal(t, r.Method+r.RequestURI, "GET/v1/memory/7?user=ann+b", name)
			c.answer(w, r)
		}))
		h := &Hook{
			Dir: Dir(t.TempDir()), MPS: &MPS{}, Now: time.Now, Cards: []Card{{MemLimits: true, MemMiB: 16160}},
			Controller: &Controller{URL: cmp.Or(c.url, srv.URL+"/"), Timeout: time.Minute}, // of a busy machine
		}
		if c.err == "deadline" {
			h.Controller.Timeout = 50 * time.Millisecond
		}
		j := &JobFile{JobID: 7, User: "ann b", GPUs: []int{0}, Percent: 50}
		if c.change != nil {
			c.change(h, j)
		}
		must.OK(t, h.Dir.Begin(j))
		err := h.askTerms(t.Context(), j)
		says(t, err, c.err, name)
		if err != nil && (!strings.HasPrefix(err.Error(), "job 7 goes without a memory limit: ") ||
			strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 1000) {
			t.Errorf("%s: %v", name, err)
		}
		for _, j := range []*JobFile{j, read(t, h.Dir.running(7))} {
			must.Equal(t, j.MemLimitMiB, c.limit, name)
			must.Equal(t, j.ByHand, name == "by hand", name)
		}
		must.Equal(t, asked.Load() > 0, c.url == "" && c.change == nil, "%s: the controller is asked", name)
		srv.CloseClientConnections()
		srv.Close()
	}
}

// Of several controllers the first that answers counts, however long the others take.
func TestAskSeveral(t *testing.T) {
	hangs := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer hangs.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"mib": 4402}`)
	}))
	defer srv.Close()
	c := &Controller{URL: "http://" + hangs.Addr().String() + ", " + gone.URL + "," + srv.URL, Timeout: time.Minute}
	must.Equal(t, must.Get(c.Terms(t.Context(), 7, "ann"))(t), Terms{MiB: 4402})
	c.URL = gone.URL + "," + gone.URL
	_, err := c.Terms(t.Context(), 7, "ann")
	says(t, err, "refused", "none is there")
}

func TestAddressesOfControllers(t *testing.T) {
	for text, want := range map[string]int{
		"http://a:1,https://b:2": 2, "http://a, http://b": 2, "http://a,": 0, "http://a,ftp://b": 0, "http://head:9797": 1,
		"https://[::1]:9797/": 1, "head:9797": 0, "ftp://head": 0, "http://": 0, "http://ann:secret@head": 0,
		"http://ann:secret@head:port": 0, "http://head?x=1": 0, ":": 0,
	} {
		got, err := Addresses(text)
		must.Equal(t, len(got), want, text)
		must.Equal(t, [2]bool{err == nil, strings.Contains(fmt.Sprint(err), "secret")}, [2]bool{want > 0, false}, text)
	}
}

// Where there is no MUNGE, root proves what it asks with the key that node.yaml names.
func TestAskWithAKey(t *testing.T) {
	file := keytest.File(t, keytest.Random(t))
	key := credential.NewKey(file)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := must.Get(key.Decode(t.Context(), r.Header.Get(key.Header())))(t)
		must.Equal(t, c.Payload, httpapi.Question(r.URL.Path))
		fmt.Fprint(w, `{"mib": 1402}`)
	}))
	defer srv.Close()
	conf := filepath.Join(t.TempDir(), "node.yaml")
	must.OK(t, os.WriteFile(conf, fmt.Appendf(nil, "controller: %s\nkey_file: %s\n", srv.URL, file), 0o644))
	s := must.Get(Load(conf))(t)
	c := s.Hook(func(string) string { return "" }, time.Second).Controller
	c.Timeout = time.Minute // of a busy machine
	must.Equal(t, must.Get(c.Terms(t.Context(), 7, "ann"))(t), Terms{MiB: 1402})
}

// The controller is trusted and shown what the agent's controller_config says.
func TestControllerConfig(t *testing.T) {
	a := tlstest.New(t)
	cert, key := a.Issue(t, "head", time.Now().Add(time.Hour), "head.example")
	a.Issue(t, "node", time.Now().Add(time.Hour), "node.example")
	pair, clients := must.Get(tls.LoadX509KeyPair(cert, key))(t), x509.NewCertPool()
	clients.AppendCertsFromPEM(must.Get(os.ReadFile(a.CA))(t))
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != "node" || p != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"mib": 5}`)
	}))
	srv.TLS = &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: clients,
		ClientAuth: tls.RequireAndVerifyClientCert,
	}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	n := 0
	write := func(text string) string {
		n++
		path := filepath.Join(a.Dir, fmt.Sprint(n, ".yml"))
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	fifo := filepath.Join(a.Dir, "fifo")
	must.OK(t, os.WriteFile(filepath.Join(a.Dir, "password"), []byte("secret\n"), 0o600), syscall.Mkfifo(fifo, 0o600))
	const (
		shown = ", cert_file: node.pem, key_file: node.key"
		basic = "}\nbasic_auth: {username: node, password_file: password}\n"
	)
	right := write("tls_config: {ca_file: ca.pem, server_name: head.example" + shown + basic)
	for name, c := range map[string]struct{ file, err string }{
		"right": {right, ""},
		"none":  {"", "certificate"},
		"nothing shown": {
			write("tls_config: {ca_file: ca.pem, server_name: head.example" + basic),
			"ask the controller",
		},
		"no password": {write("tls_config: {ca_file: ca.pem, server_name: head.example" + shown + "}\n"), "401"},
		"another name": {
			write("tls_config: {ca_file: ca.pem, server_name: other.example" + shown + basic),
			"other.example",
		},
		"nothing in the CA":  {write("tls_config: {ca_file: password" + basic), "no certificate"},
		"no such file":       {write("tls_config: {ca_file: ca.pem, cert_file: x.pem" + basic), "no such file"},
		"no such password":   {write("basic_auth: {username: node, password_file: x}\n"), "no such file"},
		"an unknown setting": {write("oauth2: {client_id: x}\n"), "hooks know"},
		"no YAML":            {write("tls_config: [\n"), "yaml"},
		"no config":          {filepath.Join(a.Dir, "none.yml"), "no such file"},
		"a disk that hangs":  {fifo, "no answer"},
	} {
		asks := &Controller{URL: srv.URL, Config: c.file, Timeout: 10 * time.Second}
		if c.file == fifo {
			asks.Timeout = 50 * time.Millisecond
		}
		limit, err := asks.Terms(t.Context(), 7, "ann")
		says(t, err, c.err, name)
		must.Equal(t, limit, map[bool]Terms{true: {MiB: 5}}[c.err == ""], name)
	}
	// The same file is the agent's.
	agents := must.Get(recordhttp.NewClient(right))(t)
	defer agents.CloseIdleConnections()
	resp := must.Get(agents.Get(srv.URL))(t)
	must.OK(t, resp.Body.Close())
	must.Equal(t, resp.StatusCode, http.StatusOK, "the agent's")
}

// Settings without a sound controller limit nothing, and don't repeat a password.
func TestLimitSettings(t *testing.T) {
	for text, want := range map[string]struct{ controller, err string }{
		"controller: http://head:9797\n":                        {"http://head:9797", ""},
		"memory_limit: auto\n":                                  {"", ""},
		"controller: http://u:secret@head\n":                    {"", "no address"},
		"memory_limit: \"off\"\ncontroller: http://head:9797\n": {"", ""},
		"memory_limit: profile\ncontroller: http://head:9797\n": {"http://head:9797", "takes auto or off"},
		"controller_config: etc/x.yml\n":                        {"", "controller_config is"},
	} {
		path := filepath.Join(t.TempDir(), "node.yaml")
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		s, err := Load(path)
		says(t, err, want.err, text)
		must.Equal(t, strings.Contains(fmt.Sprint(err), "secret"), false, text)
		asked := ""
		if h := s.Hook(func(string) string { return "" }, time.Second); h.Controller != nil {
			asked = h.Controller.URL
		}
		must.Equal(t, asked, want.controller, text)
	}
}
