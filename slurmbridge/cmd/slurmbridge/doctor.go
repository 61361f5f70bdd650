package main

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
)

type doctorFlags struct{ server, agents, client string }

func newDoctor(s *shared) *cobra.Command {
	var f doctorFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "What this cluster still lacks, with the lines to add",
		Long: `doctor reads Slurm's configuration and the state of the daemon and of the nodes'
agents, and says what is missing or risky, why, and which lines to write where. It
changes nothing. Run it on the controller, as SlurmUser or root, until it finds
nothing: from a cluster that knows no slurmbridge it leads to one that shares GPUs.

For daemons with TLS or a password, --client-config names a file in the
format of Prometheus's HTTP clients:

  tls_config: {ca_file: /etc/slurmbridge/ca.crt}
  basic_auth: {username: prometheus, password_file: /etc/slurmbridge/password}

Exit status: 0 nothing to do (there may be notes), 1 warnings, 2 errors. Where
nothing could be examined it is 1 or 2 as well, standard output is empty and
standard error says why. --json prints {"findings": [{"check", "severity", "what",
"why", "cost", "fix": [{"file", "lines"}]}], "exit"}; names of checks stay as they are.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.doctor(c, &f) },
	}
	serverFlag(c, &f.server)
	c.Flags().StringVar(&f.agents, "agents", "http://{node}:9798",
		"the nodes' agents' address, with {node} for the node's; empty: they are left out")
	c.Flags().StringVar(&f.client, "client-config", "",
		"how the daemons are trusted and what they are shown, a file in the format of Prometheus's HTTP clients")
	return c
}

func (s *shared) doctor(c *cobra.Command, f *doctorFlags) error {
	cfg, err := s.Load(c)
	if err != nil {
		return err
	}
	web, err := recordhttp.NewClient(f.client)
	if err != nil {
		return cli.Usage(fmt.Errorf("--client-config: %w", err))
	}
	if f.agents != "" && !strings.Contains(f.agents, "{node}") {
		return cli.Usage(fmt.Errorf("--agents %q doesn't say {node} where the node's address belongs", f.agents))
	}
	cl, err := client(cfg, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	facts, err := doctor.Collect(ctx, cl.Show, cfg, bridgeUser(ctx))
	if err != nil {
		return err
	}
	if facts.Config != nil {
		askAround(ctx, facts, cfg, f, web)
	}
	findings := doctor.Examine(facts)
	exit := doctor.Exit(findings)
	if err := s.Show(map[string]any{"findings": findings, "exit": exit}, func() {
		s.printf("%s", doctor.Text(findings))
	}); err != nil || exit == 0 {
		return err
	}
	return cli.Exit(exit)
}

// bridgeUser is the user that the bridge runs as: the service's where root runs doctor, else the one that runs it.
func bridgeUser(ctx context.Context) string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	if u.Uid == "0" {
		// Where there is no systemd there is no service.
		out, _ := exec.CommandContext(ctx, "systemctl", "show", "-p", "LoadState,User", "slurmbridge").Output()
		if name := doctor.UnitUser(string(out)); name != "" {
			return name
		}
	}
	return u.Username
}

// askAround adds to the facts what those say that doctor can only ask.
func askAround(ctx context.Context, facts *doctor.Facts, cfg *config.Config, f *doctorFlags, web *http.Client) {
	if *facts.MungeSocket {
		said := doctor.TryCredential(ctx, &credential.Munge{Socket: cfg.MungeSocket})
		facts.Munge = &said
	}
	if facts.Key != nil {
		said := doctor.TryCredential(ctx, credential.Choose(cfg.KeyFile, cfg.MungeSocket).Users)
		facts.Token = &said
	}
	if address := daemonURL(cfg, f.server); address != "" {
		facts.Daemon = doctor.AskDaemon(ctx, web, address)
	}
	if f.agents != "" {
		facts.Agents = doctor.AskAgents(ctx, web, f.agents, facts.Nodes)
	}
}
