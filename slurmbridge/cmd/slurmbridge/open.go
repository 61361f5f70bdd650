package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

func newOpen(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "open",
		Short: "Let every waiting job go at once",
		Long: `open lets every waiting job go: the gate is cancelled, jobs prepared for a group
that hasn't started get back their requests, and the gate file names no gate any more.
They are ordinary Slurm jobs from then on, each with a GPU of its own.

It needs no running daemon. A daemon that still runs makes a new gate for jobs
submitted later: stop it first where that isn't wanted.`,
		Args: cobra.NoArgs,
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), 2*time.Minute)
			defer cancel()
			cl, err := client(cfg, nil)
			if err != nil {
				return err
			}
			var groups *tracker.Tracker
			st, err := cli.OpenStore(ctx, cfg)
			if err == nil {
				defer st.Close()
				groups, err = journal.New(st.DB()).Load(ctx)
			}
			if err != nil {
				// Jobs behind the gate go all the same.
				fmt.Fprintf(s.ErrOut, "slurmbridge: %v; jobs prepared for a group that can't be read keep their shares\n", err)
			}
			if groups == nil {
				groups = tracker.New()
			}
			n, err := loop.UngateAll(ctx, cl, groups, cfg.GateFile)
			if err != nil {
				return err
			}
			return s.Show(map[string]int{"jobs": n}, func() { fmt.Fprintf(s.Out, "open: %d jobs ungated\n", n) })
		}),
	}
}

// client makes the cluster's client of the settings.
func client(cfg *config.Config, m *loop.Metrics) (*slurm.Client, error) {
	cl := &slurm.Client{Conf: cfg.SlurmConf, Bin: cfg.BinDir, Name: cfg.Name}
	if cl.Name == "" {
		cl.Name, _ = os.Hostname() // without one its gates have no owner
	}
	if m != nil {
		cl.Observe = m.Command
	}
	if _, err := os.Stat(cfg.SlurmConf); cfg.SlurmConf != "" && err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Where("slurm_conf"), err)
	}
	if err := cl.Open(); err != nil {
		if cfg.BinDir != "" {
			err = fmt.Errorf("%s: %w", cfg.Where("bin_dir"), err)
		}
		return nil, fmt.Errorf("%w; is Slurm installed here? Else name its folder: bin_dir", err)
	}
	return cl, nil
}

// errNoDaemon: there is no answer where the daemon should be.
var errNoDaemon = errors.New("no answer from the daemon")

// direct uses no proxy and follows no redirect: either would get the user's credential.
var direct = &http.Client{
	Transport:     &http.Transport{},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func ask(ctx context.Context, cfg *config.Config, server, path string, into any) error {
	url := daemonURL(cfg, server)
	if url == "" {
		return fmt.Errorf("%w: listen is empty, so it serves nothing; name it with --server", errNoDaemon)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	get := func(header, cred string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+path, http.NoBody)
		if err != nil {
			return nil, cli.Usage(fmt.Errorf("--server %q is no address: %w", server, err))
		}
		if cred != "" {
			req.Header.Set(header, cred)
		}
		resp, err := direct.Do(req)
		if err != nil {
			return nil, fmt.Errorf("%w at %s (%s); is it running (systemctl status slurmbridge)? With TLS, name it: --server "+
				"https://HOST:PORT", errNoDaemon, url, doctor.Cause(err))
		}
		return resp, nil
	}
	resp, err := get("", "")
	if err != nil {
		return err
	}
	if how := credential.ForUser(resp.Header.Get("WWW-Authenticate"), cfg.MungeSocket); how != nil {
		name, _, _ := strings.Cut(path, "?")
		cred, err := how.Encode(ctx, httpapi.Question(name))
		switch {
		case err == nil:
			resp.Body.Close()
			if resp, err = get(how.Header(), cred); err != nil {
				return err
			}
		case resp.StatusCode == http.StatusUnauthorized:
			resp.Body.Close()
			return fmt.Errorf("the daemon requires a credential: %w: %s", err, how.Hint(err))
		} // otherwise a credential would only have shown more
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("answer of %s is not what slurmbridge says: %w", url, err)
	}
	return nil
}

// daemonURL is where the daemon of the settings answers: at server, otherwise on this machine if it listens on all of
// its addresses; "" = it serves nothing.
func daemonURL(cfg *config.Config, server string) string {
	if server != "" {
		return server
	}
	address, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil || port == "" {
		return ""
	}
	if ip := net.ParseIP(address); address == "" || ip != nil && ip.IsUnspecified() {
		address = "localhost"
	}
	scheme := "http://"
	var web struct {
		TLS map[string]any `yaml:"tls_server_config"`
	}
	if text, err := os.ReadFile(cfg.WebConfig); err == nil && yaml.Unmarshal(text, &web) == nil && len(web.TLS) > 0 {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(address, port)
}

func serverFlag(c *cobra.Command, server *string) {
	c.Flags().StringVar(server, "server", "",
		"the daemon's address, e.g. http://head:9797 (default: this machine, port of `listen`)")
}
