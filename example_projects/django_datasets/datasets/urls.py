"""Where everything is."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from datasets import drf_views, views
from datasets.ninja_api import api

of_dataset = [
    path("search", views.search),
    path("export", views.export),
    path("suggest", views.suggest),
    path("preview", views.preview),
    path("rows", drf_views.Rows.as_view()),
]
urlpatterns = [
    path("api/v1/datasets/<int:dataset_id>/", include(of_dataset)),
    path("api/v2/", api.urls),
    path("admin/", admin.site.urls),
    path("health", views.health),
]
