"""What a graph will cost and do on devices that need not be there: profiles, plans, simulations."""

from flowengine.plan.allocate import Candidate, Choice, allocate, make_choice
from flowengine.plan.costs import Memory, Parallel, StageCosts
from flowengine.plan.deployment import Deployed, Deployment, PackWork, StepWork
from flowengine.plan.device import Device, Fleet, find_device, parse_fleet
from flowengine.plan.figures import WARM, Figures, simulate
from flowengine.plan.flow import Flow
from flowengine.plan.leave_out import ArrivalPacker, leave_out
from flowengine.plan.load import Line, Load
from flowengine.plan.plan_file import Plan, StagePlan, apply_plan, check_plan, read_plan
from flowengine.plan.planner import CostModel, Roofline
from flowengine.plan.session import (
    BASELINES,
    PARTS,
    Baseline,
    Part,
    Setting,
    Workload,
    make_plan,
    make_setting,
    read_workload,
    simulate_baseline,
    simulate_without,
)

__all__ = [
    "BASELINES",
    "PARTS",
    "WARM",
    "Baseline",
    "Candidate",
    "Choice",
    "CostModel",
    "Deployed",
    "Deployment",
    "Device",
    "Figures",
    "Fleet",
    "Flow",
    "Line",
    "Load",
    "Memory",
    "PackWork",
    "Parallel",
    "Part",
    "Plan",
    "Roofline",
    "Setting",
    "StageCosts",
    "StagePlan",
    "StepWork",
    "Workload",
    "ArrivalPacker",
    "allocate",
    "apply_plan",
    "check_plan",
    "find_device",
    "leave_out",
    "make_choice",
    "make_plan",
    "make_setting",
    "parse_fleet",
    "read_plan",
    "read_workload",
    "simulate",
    "simulate_baseline",
    "simulate_without",
]
