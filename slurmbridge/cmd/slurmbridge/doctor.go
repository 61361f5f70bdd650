package main

import (
	"context"
	"fmt"
	"os/exec"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

func newDoctor(s *shared) *cobra.Command {
	var agents string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "What this cluster still lacks, with the lines to add",
		Long: `doctor reads Slurm's configuration and the state of the daemon and of the nodes'
agents, and says what is missing or risky, why, and which lines to write where. It
changes nothing. Run it on the controller, as SlurmUser or root, until it finds
nothing: from a cluster that knows no slurmbridge it leads to one that shares GPUs.

Daemons with TLS or a password are asked as client_config says (etc/client.yml is an
example).

Exit status: 0 nothing to do (there may be notes), 1 warnings, 2 errors. Where
nothing could be examined it is 1 or 2 as well, standard output is empty and
standard error says why. --json prints {"findings": [{"check", "severity", "what",
"why", "cost", "fix": [{"file", "lines"}]}], "exit"}; names of checks stay as they are.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.doctor(c, agents) },
	}
	askFlags(c)
	c.Flags().StringVar(&agents, "agents", "http://{node}:9798",
		"the nodes' agents' address, with {node} for the node's; empty: they are left out")
	return c
}

func (s *shared) doctor(c *cobra.Command, agents string) error {
	cfg, err := s.Load(c)
	if err != nil {
		return err
	}
	if agents != "" && !strings.Contains(agents, "{node}") {
		return cli.Usage(fmt.Errorf("--agents %q doesn't say {node} where the node's address belongs", agents))
	}
	daemon, err := newAsking(c.Context(), cfg)
	if err != nil {
		return err
	}
	cl, err := client(cfg, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	bridge, ofService := bridgeUser(ctx)
	facts, err := doctor.Collect(ctx, cl.Show, cfg, bridge)
	if err != nil {
		return err
	}
	if slurm, _, _ := text.User(facts.Config["SlurmUser"]); !ofService && bridge != "root" && bridge != slurm {
		facts.User = "" // an ordinary user looks: whom the bridge runs as isn't known
	}
	if facts.Config != nil {
		askAround(ctx, facts, cfg, daemon, agents)
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

// bridgeUser is the user that the bridge runs as: the service's where there is one, else the one that calls doctor.
func bridgeUser(ctx context.Context) (name string, ofService bool) {
	// Where there is no systemd there is no service.
	out, _ := exec.CommandContext(ctx, "systemctl", "show", "-p", "LoadState,User", "slurmbridge").Output()
	if name := doctor.UnitUser(string(out)); name != "" {
		return name, true
	}
	u, err := user.Current()
	if err != nil {
		return "", false
	}
	return u.Username, false
}

// askAround adds to the facts what those say that doctor can only ask.
func askAround(ctx context.Context, facts *doctor.Facts, cfg *config.Config, a *asking,
	agents string,
) {
	if *facts.MungeSocket {
		said := doctor.TryCredential(ctx, &credential.Munge{Socket: cfg.MungeSocket})
		facts.Munge = &said
	}
	if facts.Key != nil {
		said := doctor.TryCredential(ctx, credential.Choose(cfg.KeyFile, cfg.MungeSocket).Users)
		facts.Token = &said
	}
	if a.url != "" {
		facts.Daemon = doctor.AskDaemon(ctx, a.client, a.url)
	}
	if agents != "" {
		facts.Agents = doctor.AskAgents(ctx, a.client, agents, facts.Nodes)
	}
}
