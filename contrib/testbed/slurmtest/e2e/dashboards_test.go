package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/grafana"
	"github.com/slurmbridge/slurmbridge/contrib/prometheus/series"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/tlstest"
)

// The password that Prometheus and the agent show, and its bcrypt hash at the lowest cost.
const (
	scrapeUser     = "prometheus"
	scrapePassword = "scrape"
	scrapeHash     = "$2a$04$5tRC.04yXG9dG/BrIRxQC.vPZ81GJ9e2dbt7mkciDlAqiXpRgYxyS"
)

// watched is a world whose daemons are scraped by a real Prometheus, over TLS and with
// a password.
type watched struct {
	*world
	client     *http.Client
	ca, trust  string // files: the authority, and how clients are to ask
	bridge     string // the bridge's address, https://…
	agent      string // host:port of the agent
	prometheus string // http://…
	began      time.Time
	seen       map[string]bool // queries that had figures
}

// After a few shared jobs every query of the dashboards has figures, and every rule
// evaluates, in a Prometheus that scrapes bridge and agent as the documentation says.
func TestDashboardsShowTheCluster(t *testing.T) {
	t.Parallel()
	series.Require(t, "prometheus")
	w := newWatched(t)
	first := w.pair("gromacs")
	w.reach("RUNNING", first...)
	second := w.pair("gromacs")
	w.reach("COMPLETED", append(first, second...)...)
	if err := w.scraped(); err != nil {
		t.Error(err)
	}
	var missing []string
	if !slurmtest.Wait(t.Context(), 2*time.Minute, func() bool { missing = w.without(); return len(missing) == 0 }) {
		t.Errorf("panels without a figure:\n%s", strings.Join(missing, "\n"))
	}
	w.rules()
}

// newWatched secures the daemons of a new world and starts Prometheus.
func newWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{world: newWorld(t, cluster.Setup{Policy: "dqn"}), began: time.Now(), seen: map[string]bool{}}
	w.secure()
	port := must.Get(w.FreePort())(t)
	rules := must.Get(filepath.Abs("../../../prometheus/slurmbridge.rules.yml"))(t)
	dir := t.TempDir()
	scrape := func(job, target string) string {
		return fmt.Sprintf("- job_name: %s\n  scheme: https\n  tls_config: {ca_file: %s}\n  basic_auth: {username: %s, "+
			"password: %s}\n  static_configs: [{targets: [%q]}]\n",
			job, w.ca, scrapeUser, scrapePassword, target)
	}
	text := "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [" + rules +
		"]\nscrape_configs:\n" +
		scrape("slurmbridge", strings.TrimPrefix(w.bridge, "https://")) + scrape("gpuprof", w.agent)
	conf := filepath.Join(dir, "prometheus.yml")
	must.OK(t, os.WriteFile(conf, []byte(text), 0o600))
	var said strings.Builder
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+conf,
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:"+port, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Wait() // the test's end has ended it
		if t.Failed() {
			t.Logf("prometheus said:\n%s", said.String())
		}
	})
	w.prometheus = "http://127.0.0.1:" + port
	// It finds its targets some seconds after it is ready. What is counted before its first
	// look has no rate.
	w.until("prometheus scrapes both", func() bool { return w.scraped() == nil })
	return w
}

// secure gives both daemons a certificate and a password: the bridge by a reload, the
// agent by a new start.
func (w *watched) secure() {
	w.t.Helper()
	auth := tlstest.New(w.t)
	cert, key := auth.Issue(w.t, "daemons", time.Now().Add(time.Hour), "127.0.0.1")
	put := func(name, text string) string {
		path := w.Path(name)
		must.OK(w.t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	body := func(path string) string {
		text := must.Get(os.ReadFile(path))(w.t)
		return string(text)
	}
	w.ca = put("ca.crt", body(auth.CA))
	web := put("web.yml", fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s}\nbasic_auth_users: {%s: %s}\n",
		put("tls.crt", body(cert)), put("tls.key", body(key)), scrapeUser, scrapeHash))
	w.trust = put("client.yml",
		fmt.Sprintf("tls_config: {ca_file: %s}\nbasic_auth: {username: %s, password: %s}\n", w.ca, scrapeUser,
			scrapePassword))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(body(w.ca)))
	w.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		DisableKeepAlives: true,
	}}

	conf := w.Path("slurmbridge.yaml")
	put("slurmbridge.yaml", body(conf)+"web_config: "+web+"\n")
	w.signal("slurmbridge", syscall.SIGHUP)
	w.bridge = strings.Replace(w.URL, "http://", "https://", 1)
	w.until("the bridge speaks TLS", func() bool { return w.answers(w.bridge+"/-/ready") == http.StatusOK })
	resp := must.Get(w.client.Get(w.bridge + "/"))(w.t)
	resp.Body.Close()
	must.Equal(w.t, resp.StatusCode, http.StatusUnauthorized, "the page without a password")

	port := must.Get(w.FreePort())(w.t)
	w.agent = "127.0.0.1:" + port
	w.breaks("agent killed")
	args := slices.Clone(w.Daemon("gpuprof").Args)
	args[slices.Index(args, "--controller")+1] = w.bridge
	args[slices.Index(args, "--listen")+1] = w.agent
	args = append(args, "--controller-config", w.trust, "--web-config", web)
	must.OK(w.t, w.Spawn("gpuprof", "", args...))
	w.until("the agent speaks TLS", func() bool { return w.answers("https://"+w.agent+"/-/ready") == http.StatusOK })
}

// request asks as Prometheus would, with the password.
func (w *watched) request(address string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth(scrapeUser, scrapePassword)
	return w.client.Do(req)
}

// answers is the status with which an address answers, 0 = it doesn't.
func (w *watched) answers(address string) int {
	resp, err := w.request(address)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// ask gets data from Prometheus's API.
func (w *watched) ask(path string, values url.Values, into any) error {
	resp, err := w.request(w.prometheus + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

// scraped reports whether both daemons are, and what is wrong otherwise.
func (w *watched) scraped() error {
	var t struct {
		ActiveTargets []struct{ Health, LastError, ScrapePool string }
	}
	if err := w.ask("/api/v1/targets", nil, &t); err != nil {
		return err
	}
	if len(t.ActiveTargets) != 2 {
		return fmt.Errorf("%d targets", len(t.ActiveTargets))
	}
	for _, a := range t.ActiveTargets {
		if a.Health != "up" {
			return fmt.Errorf("%s is %s: %s", a.ScrapePool, a.Health, a.LastError)
		}
	}
	return nil
}

// rules: each can be evaluated; and of a cluster that is well none fires.
func (w *watched) rules() {
	w.t.Helper()
	var r struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	must.OK(w.t, w.ask("/api/v1/rules", nil, &r))
	n := 0
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			n++
			if rule.Health == "err" || rule.State == "firing" {
				w.t.Errorf("%s: %s %s %s", rule.Name, rule.Health, rule.State, rule.LastError)
			}
		}
	}
	if n < 15 {
		w.t.Errorf("%d rules are loaded", n)
	}
}

// without lists the dashboards' queries that have no figure in the time of the test.
func (w *watched) without() (missing []string) {
	w.t.Helper()
	for title, queries := range must.Get(grafana.Queries("1m"))(w.t) {
		for _, query := range queries {
			if w.seen[query] {
				continue
			}
			if n, err := w.figures(query); n > 0 {
				w.seen[query] = true
			} else {
				missing = append(missing, fmt.Sprintf("%s: %s (%v)", title, query, err))
			}
		}
	}
	return missing
}

// rare are histograms that a cluster that is well may leave empty: no job was kept
// waiting next to an idle GPU, no group had to wait for Slurm. Quantiles of nothing, NaN,
// will do.
var rare = []string{"slurmbridge_added_delay_seconds_bucket", "slurmbridge_start_latency_seconds_bucket"}

// figures counts the values that are numbers of a query over the time of the test.
func (w *watched) figures(query string) (n int, err error) {
	seldom := slices.ContainsFunc(rare, func(name string) bool { return strings.Contains(query, name) })
	var m struct {
		Result []struct{ Values [][2]any }
	}
	err = w.ask("/api/v1/query_range", url.Values{
		"query": {query}, "step": {"1"},
		"start": {strconv.FormatInt(w.began.Unix(), 10)}, "end": {strconv.FormatInt(time.Now().Unix(), 10)},
	}, &m)
	for _, series := range m.Result {
		for _, v := range series.Values {
			text, _ := v[1].(string)
			if f, err := strconv.ParseFloat(text, 64); err == nil && (seldom || !math.IsNaN(f)) && !math.IsInf(f, 0) {
				n++
			}
		}
	}
	return n, err
}
