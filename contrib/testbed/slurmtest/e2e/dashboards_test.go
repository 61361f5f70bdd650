package e2e

import (
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
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
)

// scrapeHash is bcrypt's of the password "scrape", at the lowest cost.
const scrapeHash = "$2a$04$5tRC.04yXG9dG/BrIRxQC.vPZ81GJ9e2dbt7mkciDlAqiXpRgYxyS"

// watched is a world whose daemons are scraped by a real Prometheus, over TLS and with a password.
type watched struct {
	*world
	clientConfig string // how clients are to ask, in Prometheus's format
	client       *http.Client
	targets      map[string]string // addresses of the daemons by name
	prometheus   string            // http://…
	began        time.Time
	seen         map[string]bool // queries that had figures
}

// After a few shared jobs every query of the dashboards has figures, and every rule evaluates, in a Prometheus that
// scrapes bridge and agent as the documentation says.
func TestDashboardsShowTheCluster(t *testing.T) {
	t.Parallel()
	series.Require(t, "prometheus")
	w := &watched{world: newWorld(t, cluster.Setup{Policy: "dqn"}), began: time.Now(), seen: map[string]bool{}}
	w.secure()
	w.watch()
	first := w.pair("gromacs")
	w.reach("RUNNING", first...)
	second := w.pair("gromacs")
	w.reach("COMPLETED", append(first, second...)...)
	must.OK(t, w.scraped())
	w.everyCommandAsks(first[0])
	var missing []string
	found := func() bool { missing = w.without(); return len(missing) == 0 }
	if !slurmtest.Wait(t.Context(), 90*time.Second, found) {
		// What ended before the daemon first looked at what was used, once a minute, counts for nothing.
		w.reach("COMPLETED", w.pair("gromacs")...)
		if !slurmtest.Wait(t.Context(), 2*time.Minute, found) {
			t.Errorf("panels without a figure:\n%s", strings.Join(missing, "\n"))
		}
	}
	w.rules()
}

// secure gives both daemons a certificate and a password: the bridge by a reload, the agent by a new start.
func (w *watched) secure() {
	w.t.Helper()
	put := func(name, text string) string {
		must.OK(w.t, os.WriteFile(w.Path(name), []byte(text), 0o644))
		return w.Path(name)
	}
	body := func(path string) string { return string(must.Get(os.ReadFile(path))(w.t)) }
	auth := tlstest.New(w.t)
	cert, key := auth.Issue(w.t, "daemons", time.Now().Add(time.Hour), "127.0.0.1")
	web := put("web.yml", fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s}\nbasic_auth_users: {prometheus: %s}\n",
		put("tls.crt", body(cert)), put("tls.key", body(key)), scrapeHash))
	w.clientConfig = fmt.Sprintf("tls_config: {ca_file: %s}\nbasic_auth: {username: prometheus, password: scrape}\n",
		put("ca.crt", body(auth.CA)))
	trust := put("client.yml", w.clientConfig)
	put("ca.yml", strings.Split(w.clientConfig, "\n")[0])
	w.client = must.Get(recordhttp.NewClient(trust))(w.t)
	w.t.Cleanup(w.client.CloseIdleConnections)

	put("slurmbridge.yaml", body(w.Path("slurmbridge.yaml"))+"web_config: "+web+"\nclient_config: "+trust+"\n")
	w.signal("slurmbridge", syscall.SIGHUP)
	w.targets = map[string]string{
		"slurmbridge": strings.TrimPrefix(w.URL, "http://"), "gpuprof": "127.0.0.1:" + must.Get(w.FreePort())(w.t),
	}
	w.breaks("agent killed")
	args := slices.Clone(w.Daemon("gpuprof").Args)
	args[slices.Index(args, "--controller")+1] = "https://" + w.targets["slurmbridge"]
	args[slices.Index(args, "--listen")+1] = w.targets["gpuprof"]
	must.OK(w.t, w.Spawn("gpuprof", "", append(args, "--controller-config", trust, "--web-config", web)...))
	for name, address := range w.targets {
		w.until(name+" speaks TLS", func() bool {
			resp, err := w.client.Get("https://" + address + "/-/ready")
			if err == nil {
				resp.Body.Close()
			}
			return err == nil && resp.StatusCode == http.StatusOK
		})
	}
}

// everyCommandAsks calls each command that asks the daemon, by the settings that users can read, and without the password.
func (w *watched) everyCommandAsks(job string) {
	w.t.Helper()
	for _, c := range []struct{ as, command string }{
		{"games", "status"},
		{"games", "why " + job},
		{"games", "usage --me"},
		{"games", "usage --idle"},
		{"slurm", "notify --dry-run"},
	} {
		args := strings.Fields(c.command)
		if out, err := w.world.ask(c.as, args...); err != nil {
			w.t.Errorf("%s as %s: %v: %s", c.command, c.as, err, out)
		}
		out, err := w.world.ask(c.as, append(args, "--client-config", w.Path("ca.yml"))...)
		if err == nil || !strings.Contains(out, "requires a password") {
			w.t.Errorf("%s without the password: %v: %s", c.command, err, out)
		}
	}
	if out, _ := w.world.ask("slurm", strings.Fields("doctor --json --agents=")...); strings.Contains(out, `"daemon"`) {
		w.t.Errorf("doctor doesn't reach the daemon: %s", out)
	}
}

// watch starts Prometheus.
func (w *watched) watch() {
	w.t.Helper()
	dir := w.t.TempDir()
	port := must.Get(w.FreePort())(w.t)
	text := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [%s]\n"+
		"scrape_configs:\n", must.Get(filepath.Abs("../../../prometheus/slurmbridge.rules.yml"))(w.t))
	for name, address := range w.targets {
		text += fmt.Sprintf("- job_name: %s\n  scheme: https\n  static_configs: [{targets: [%q]}]\n  %s", name, address,
			strings.Replace(w.clientConfig, "\n", "\n  ", 1))
	}
	conf := filepath.Join(dir, "prometheus.yml")
	must.OK(w.t, os.WriteFile(conf, []byte(text), 0o600))
	var said strings.Builder
	cmd := exec.CommandContext(w.t.Context(), "prometheus", "--config.file="+conf,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:"+port, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	must.OK(w.t, cmd.Start())
	w.t.Cleanup(func() {
		_ = cmd.Wait() // the test's end has ended it
		if w.t.Failed() {
			w.t.Logf("prometheus said:\n%s", said.String())
		}
	})
	w.prometheus = "http://127.0.0.1:" + port
	// It finds its targets some seconds after it is ready. What is counted before its first look has no rate.
	w.until("prometheus scrapes both", func() bool { return w.scraped() == nil })
}

// ask gets data from Prometheus's API.
func (w *watched) ask(path string, values url.Values, into any) error {
	resp, err := w.client.Get(w.prometheus + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		return fmt.Errorf("%s: %w %s", path, err, answer.Error)
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
	up := 0
	for _, a := range t.ActiveTargets {
		if a.Health == "up" {
			up++
		}
	}
	if up != len(w.targets) {
		return fmt.Errorf("targets: %+v", t.ActiveTargets)
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
			some, err := w.figures(query)
			if w.seen[query] = some; !some {
				missing = append(missing, fmt.Sprintf("%s: %s (%v)", title, query, err))
			}
		}
	}
	return missing
}

// rare are histograms that a cluster that is well may leave empty: no job was kept waiting next to an idle GPU, no group
// had to wait for Slurm. Quantiles of nothing, NaN, will do.
var rare = []string{"slurmbridge_added_delay_seconds_bucket", "slurmbridge_start_latency_seconds_bucket"}

// figures reports whether a query has a value over the time of the test that is a number.
func (w *watched) figures(query string) (some bool, err error) {
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
			f, err := strconv.ParseFloat(text, 64)
			some = some || err == nil && (seldom || !math.IsNaN(f)) && !math.IsInf(f, 0)
		}
	}
	return some, err
}
